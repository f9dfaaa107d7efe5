// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// Clock states of the kernel: see adjtimex(2).
const (
	clockError   = 5    // TIME_ERROR: not synchronized
	clockUnsync  = 0x40 // STA_UNSYNC
	clockMaximum = 1_000_000
)

func dataSync(f *os.File) error {
	if err := unix.Fdatasync(int(f.Fd())); err != nil {
		return fmt.Errorf("fdatasync: %w", err)
	}
	return nil
}

func checkClock(context.Context, *inspector) []Finding {
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	if err != nil {
		return notChecked("the kernel does not report it: %v", err)
	}
	measured := fmt.Sprintf("error at most %d ms", t.Maxerror/1000)
	if state == clockError || t.Status&clockUnsync != 0 {
		return one(Warning, "not synchronized", "no NTP client has set the clock. No messages are lost, but "+
			"delays, expiry, certificates, tokens and log timestamps depend on the clock",
			"run chrony or systemd-timesyncd; in a container: on the host")
	}
	if t.Maxerror > clockMaximum {
		return one(Warning, measured, "the clock may be off by more than a second", "check chronyc tracking")
	}
	return one(OK, "synchronized, "+measured, "", "")
}

func filesystems() map[int64]string {
	return map[int64]string{
		unix.EXT4_SUPER_MAGIC: "ext4", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
		unix.TMPFS_MAGIC: "tmpfs", unix.RAMFS_MAGIC: "ramfs", unix.NFS_SUPER_MAGIC: "nfs", unix.SMB_SUPER_MAGIC: "smb",
		unix.SMB2_SUPER_MAGIC: "smb", unix.CIFS_SUPER_MAGIC: "cifs", unix.FUSE_SUPER_MAGIC: "fuse",
		unix.OVERLAYFS_SUPER_MAGIC: "overlay", unix.V9FS_MAGIC: "9p", unix.CEPH_SUPER_MAGIC: "ceph",
		unix.AFS_SUPER_MAGIC: "afs", unix.F2FS_SUPER_MAGIC: "f2fs", 0x2fc12fc1: "zfs",
	}
}

func checkFilesystem(_ context.Context, in *inspector) []Finding {
	var st unix.Statfs_t
	if err := unix.Statfs(in.place, &st); err != nil {
		return notChecked("%s: %v", in.place, err)
	}
	name, known := filesystems()[int64(st.Type)] //nolint:unconvert // 32 bits on other processors
	if !known {
		name = fmt.Sprintf("unknown kind %#x", st.Type)
	}
	direct := "with direct writes"
	if !directWrites(in.place) {
		direct = "without direct writes (O_DIRECT)"
	}
	measured := fmt.Sprintf("%s, %s, %s", name, direct, in.place)
	switch name {
	case "tmpfs", "ramfs":
		return one(Problem, measured, "the filesystem is in memory: all data is lost when this machine stops",
			"set data.dir to a directory on a disk")
	case "nfs", "smb", "cifs", "9p", "afs":
		return one(Problem, measured, "a network filesystem: locks and syncs may be unreliable, and "+
			"both nodes may depend on the same disk", "set data.dir to a local disk of this machine")
	case "fuse", "ceph":
		return one(Warning, measured, "possibly a network filesystem: syncs are then slow, and both nodes may depend on "+
			"the same disk", "use a local disk, or make sure that the nodes share no storage")
	case "overlay":
		return one(Warning, measured, "a container layer: all data is lost when the container is removed",
			"mount a volume at data.dir")
	}
	if !strings.HasPrefix(direct, "with ") {
		return one(OK, measured, "checkpoints and large writes go through the page cache", "")
	}
	return one(OK, measured, "", "")
}

func directWrites(dir string) bool {
	f, err := os.CreateTemp(dir, ".lockstep-doctor-")
	if err != nil {
		return false
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name())
	}()
	d, err := os.OpenFile(f.Name(), os.O_WRONLY|unix.O_DIRECT, 0)
	if err != nil {
		return false
	}
	_ = d.Close()
	return true
}

// lockOwner returns the ID of the process that has locked a file; 0 means none, or unknown. It does not lock the file.
func lockOwner(name string) int {
	var st syscall.Stat_t
	if err := syscall.Stat(name, &st); err != nil {
		return 0
	}
	locks, err := os.ReadFile("/proc/locks")
	if err != nil {
		return 0
	}
	inode := strconv.FormatUint(st.Ino, 10)
	device := fmt.Sprintf("%02x:%02x:", unix.Major(st.Dev), unix.Minor(st.Dev))
	for line := range strings.Lines(string(locks)) {
		// 1: FLOCK  ADVISORY  WRITE 1234 08:01:567 0 EOF
		fields := strings.Fields(line)
		if len(fields) >= 6 && fields[5] == device+inode {
			if pid, err := strconv.Atoi(fields[4]); err == nil {
				return pid
			}
		}
	}
	return 0
}

// portOwner returns the ID of the process that listens on a port; 0 means none, or unknown.
func portOwner(port int) int {
	const listen = "0A"
	inodes := map[string]bool{}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) < 10 || f[3] != listen {
				continue
			}
			_, hex, _ := strings.Cut(f[1], ":")
			if n, err := strconv.ParseUint(hex, 16, 16); err == nil && int(n) == port {
				inodes["socket:["+f[9]+"]"] = true
			}
		}
	}
	if len(inodes) == 0 {
		return 0
	}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*") // links of other users are not readable
	for _, link := range links {
		if target, err := os.Readlink(link); err == nil && inodes[target] {
			pid, _ := strconv.Atoi(strings.Split(link, "/")[2])
			return pid
		}
	}
	return 0
}

func nameOfProcess(pid int) string {
	return readText(fmt.Sprintf("/proc/%d/comm", pid))
}

// readText returns the content of a file without surrounding white space, or "" if the file cannot be read.
func readText(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// memoryLimits returns the memory of the machine and the limit of this process's control group, in bytes; 0 means
// unknown or unlimited.
func memoryLimits() (machine, group uint64) {
	if b, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "MemTotal:" {
				kib, _ := strconv.ParseUint(f[1], 10, 64)
				machine = kib << 10
			}
		}
	}
	if text := groupFile("memory.max", "memory/memory.limit_in_bytes"); text != "" && text != "max" {
		if n, err := strconv.ParseUint(text, 10, 64); err == nil && n < 1<<60 { // version 1: more means unlimited
			group = n
		}
	}
	return machine, group
}

// groupFile returns the content of a file of this process's control group; empty if the file does not exist. v2 is the
// name of the file in cgroup version 2: in the process's own group or, in a container, at the root. v1 is the path of
// the file in version 1.
func groupFile(v2, v1 string) string {
	const root = "/sys/fs/cgroup"
	var names []string
	if b, err := os.ReadFile("/proc/self/cgroup"); err == nil {
		for line := range strings.Lines(string(b)) {
			if path, ok := strings.CutPrefix(strings.TrimSpace(line), "0::"); ok {
				names = append(names, filepath.Join(root, path, v2))
			}
		}
	}
	for _, name := range append(names, filepath.Join(root, v2), filepath.Join(root, v1)) {
		if text := readText(name); text != "" {
			return text
		}
	}
	return ""
}

func checkProcessors(context.Context, *inspector) []Finding {
	n := runtime.NumCPU()
	measured := output.Plural(n, "processor")
	quota, period, ok := strings.Cut(groupFile("cpu.max", "cpu/cpu.max"), " ")
	q, errQ := strconv.ParseFloat(quota, 64)
	p, errP := strconv.ParseFloat(period, 64)
	if ok && errQ == nil && errP == nil && p > 0 {
		measured += fmt.Sprintf(", limited to %.1f by the control group", q/p)
		if q/p < 1 {
			return one(Warning, measured, "the CPU quota pauses the node in each 100 ms period: heartbeats may be "+
				"late, and the other node takes over", "allow at least one processor (cpu.max; in Kubernetes: limits.cpu)")
		}
	}
	return one(OK, measured, "", "")
}

func checkKernel(context.Context, *inspector) []Finding {
	var all []Finding
	add := func(subject string, v Verdict, measured, meaning, do string) {
		all = append(all, Finding{Subject: subject, Verdict: v, Measured: measured, Meaning: meaning, Do: do})
	}
	switch v := readText("/proc/sys/vm/overcommit_memory"); v {
	case "":
		add("vm.overcommit_memory", NotChecked, "", "it cannot be read", "")
	case "2":
		add("vm.overcommit_memory", Warning, v, "memory overcommit is disabled: the node, which reserves address "+
			"space that it does not use, may fail to allocate memory", "sysctl vm.overcommit_memory=0")
	default:
		add("vm.overcommit_memory", OK, v, "", "")
	}
	swap := swapBytes()
	switch v, err := strconv.Atoi(readText("/proc/sys/vm/swappiness")); {
	case err != nil:
		add("vm.swappiness", NotChecked, "", "it cannot be read", "")
	case swap > 0 && v > 10:
		add("vm.swappiness", Warning, fmt.Sprintf("%d, with %s of swap", v, output.Bytes(swap)), "memory of the node may be "+
			"swapped out: it then responds late, and the other node takes over", "sysctl vm.swappiness=1, or use no swap")
	default:
		add("vm.swappiness", OK, fmt.Sprintf("%d, with %s of swap", v, output.Bytes(swap)), "", "")
	}
	switch v := chosenOf(readText("/sys/kernel/mm/transparent_hugepage/enabled")); v {
	case "":
		add("transparent huge pages", NotChecked, "", "the kernel does not report it", "")
	case "always":
		add("transparent huge pages", OK, v, "the process may use slightly more than memory.budget; madvise avoids this",
			"")
	default:
		add("transparent huge pages", OK, v, "", "")
	}
	switch v, err := strconv.Atoi(readText("/proc/sys/net/core/somaxconn")); {
	case err != nil:
		add("net.core.somaxconn", NotChecked, "", "it cannot be read", "")
	case v < 1024:
		add("net.core.somaxconn", Warning, strconv.Itoa(v), "if all clients reconnect simultaneously after a "+
			"failover, some have to retry", "sysctl net.core.somaxconn=4096")
	default:
		add("net.core.somaxconn", OK, strconv.Itoa(v), "", "")
	}
	add("tcp keepalive", OK, "not needed", "nodes and clients send keepalive pings", "")
	return all
}

// chosenOf returns the selected value in brackets, such as madvise in "always [madvise] never".
func chosenOf(text string) string {
	_, after, _ := strings.Cut(text, "[")
	word, _, _ := strings.Cut(after, "]")
	return word
}

func swapBytes() (total uint64) {
	f, err := os.Open("/proc/swaps")
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 2 {
			kib, err := strconv.ParseUint(fields[2], 10, 64)
			if errors.Is(err, strconv.ErrSyntax) {
				continue // the header
			}
			total += kib << 10
		}
	}
	return total
}

func openFiles() (uint64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, fmt.Errorf("getrlimit: %w", err)
	}
	return limit.Max, nil // the Go runtime raises the soft limit to the hard limit
}
