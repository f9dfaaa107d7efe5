// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// processorTime returns the time of all processors since the start, in seconds, and the part of it that the hypervisor
// gave to other virtual machines (steal). It returns zeros if the times are unknown.
func processorTime() (total, stolen float64) {
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return 0, 0
	}
	st, err := proc.Stat()
	if err != nil {
		return 0, 0
	}
	t := st.CPUTotal
	return t.User + t.Nice + t.System + t.Idle + t.Iowait + t.IRQ + t.SoftIRQ + t.Steal, t.Steal
}

// limitMemory moves this process into a new memory cgroup, which also limits its page cache. leave moves it back
// and removes the cgroup.
func limitMemory(bytes int64) (leave func() error, err error) {
	mount, home, limit, err := memoryCgroup()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(mount, fmt.Sprintf("lockstep-bench-%d", os.Getpid()))
	if err := os.Mkdir(dir, 0o750); err != nil {
		return nil, fmt.Errorf("create a memory cgroup (requires root): %w", err)
	}
	if err = writeControl(filepath.Join(dir, limit), bytes); err == nil {
		err = writeControl(filepath.Join(dir, "cgroup.procs"), int64(os.Getpid()))
	}
	if err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}
	return func() error {
		if err := writeControl(filepath.Join(home, "cgroup.procs"), int64(os.Getpid())); err != nil {
			return err
		}
		if err := os.Remove(dir); err != nil {
			return fmt.Errorf("remove the memory cgroup: %w", err)
		}
		return nil
	}, nil
}

func writeControl(file string, value int64) error {
	if err := os.WriteFile(file, []byte(strconv.FormatInt(value, 10)), 0); err != nil {
		return fmt.Errorf("memory cgroup: %w", err)
	}
	return nil
}

// memoryCgroup returns the mount point of the hierarchy with the memory controller, the directory of this process's
// group, and the name of the limit file. Version 2 has a single hierarchy, version 1 a separate one for memory.
func memoryCgroup() (mount, home, limit string, err error) {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return "", "", "", fmt.Errorf("find cgroups: %w", err)
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", "", "", fmt.Errorf("find cgroups: %w", err)
	}
	mount, v2 := findMemoryMount(string(mounts))
	if mount == "" {
		return "", "", "", errors.New("no cgroup hierarchy with the memory controller is mounted")
	}
	limit = "memory.limit_in_bytes"
	if v2 {
		limit = "memory.max"
		enabled, err := os.ReadFile(filepath.Join(mount, "cgroup.subtree_control"))
		if err != nil || !slices.Contains(strings.Fields(string(enabled)), "memory") {
			// Version 2 allows no processes in inner groups except the root. The new group is therefore below the root,
			// where the controller must be enabled. systemd enables it.
			if err := os.WriteFile(filepath.Join(mount, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
				return "", "", "", fmt.Errorf("enable the memory controller: %w", err)
			}
		}
	}
	for line := range strings.Lines(string(own)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && (v2 && f[1] == "" || !v2 && slices.Contains(strings.Split(f[1], ","), "memory")) {
			return mount, filepath.Join(mount, f[2]), limit, nil
		}
	}
	return "", "", "", errors.New("the process has no cgroup in " + mount)
}

// findMemoryMount returns the mount point of the hierarchy with the memory controller; empty if not mounted. A
// version 1 hierarchy takes precedence: version 2 does not have the controller in that case.
func findMemoryMount(mountinfo string) (mount string, v2 bool) {
	for line := range strings.Lines(mountinfo) {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 {
			continue
		}
		switch {
		case g[0] == "cgroup" && slices.Contains(strings.Split(g[2], ","), "memory"):
			return f[4], false
		case g[0] == "cgroup2":
			if b, err := os.ReadFile(filepath.Join(f[4], "cgroup.controllers")); err == nil &&
				slices.Contains(strings.Fields(string(b)), "memory") {
				mount, v2 = f[4], true
			}
		}
	}
	return mount, v2
}

// adviseDontNeed evicts the clean pages of a file from the page cache. Dirty pages stay.
func adviseDontNeed(f *os.File) error {
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("evict %s from the page cache: %w", f.Name(), err)
	}
	return nil
}
