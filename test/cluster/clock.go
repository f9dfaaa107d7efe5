// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"context"
	"debug/buildinfo"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/test/vfs/faultdisk"
)

// A wall clock jumps when an operator or NTP sets it; the monotonic clock of a process is not affected. Go programs
// do not read the clock through a replaceable library, so the nodes of these tests are built with a modified
// time.Now. It adds an offset in seconds, which each call reads from a memory-mapped file that the test writes.
const (
	// clockTag is the build tag that identifies a binary with an adjustable clock. No source file has it as a build
	// constraint.
	clockTag = "faultclock"
	// clockVariable is the environment variable with the path of the offset file: 8 bytes, in native byte order.
	clockVariable = "FAULTCLOCK"
)

// clockSource is added to package time. The original Now is renamed to realNow.
const clockSource = `package time

import (
	"sync/atomic"
	"syscall"
	"unsafe"
)

var faultClock = mapFaultClock()

func mapFaultClock() *int64 {
	name, ok := syscall.Getenv("` + clockVariable + `")
	if !ok {
		return new(int64)
	}
	fd, err := syscall.Open(name, syscall.O_RDWR, 0)
	if err != nil {
		panic("` + clockVariable + `: " + err.Error())
	}
	b, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		panic("` + clockVariable + `: " + err.Error())
	}
	syscall.Close(fd)
	return (*int64)(unsafe.Pointer(&b[0]))
}

// Now returns the time of a clock that a test has set.
func Now() Time {
	t := realNow()
	if faultClock != nil {
		t.addSec(atomic.LoadInt64(faultClock))
	}
	return t
}
`

// clockOverlay writes the files for a build with an adjustable clock, and returns the path of the overlay.
func clockOverlay(ctx context.Context, dir string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("adjustable clock: %w", err)
	}
	original := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(original)
	if err != nil {
		return "", fmt.Errorf("adjustable clock: %w", err)
	}
	const now, realNow = "\nfunc Now() Time {\n", "\nfunc realNow() Time {\n"
	if strings.Count(string(source), now) != 1 {
		return "", fmt.Errorf("adjustable clock: %s does not contain %q", original, strings.TrimSpace(now))
	}
	replaced := strings.Replace(string(source), now, realNow, 1)
	files := map[string]string{"time.go": replaced, "faultclock.go": clockSource}
	replace := map[string]string{}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return "", fmt.Errorf("adjustable clock: %w", err)
		}
		replace[filepath.Join(filepath.Dir(original), name)] = path
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", fmt.Errorf("adjustable clock: %w", err)
	}
	name := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(name, overlay, 0o600); err != nil {
		return "", fmt.Errorf("adjustable clock: %w", err)
	}
	return name, nil
}

// CanBreakDisks reports whether a binary was built with the tag required by Options.Disk. Build sets the tag; a
// LOCKSTEP_BINARY may have been built without it.
func CanBreakDisks(binary string) bool { return builtWith(binary, faultdisk.Tag) }

// CanSetClocks reports whether a binary supports Options.Clock, as the binaries built by BuildWithClock do.
func CanSetClocks(binary string) bool { return builtWith(binary, clockTag) }

func builtWith(binary, tag string) bool {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return false
	}
	for _, s := range info.Settings {
		if s.Key == "-tags" && slices.Contains(strings.Split(s.Value, ","), tag) {
			return true
		}
	}
	return false
}

// ErrNoFaultClock is returned if a clock is set without Options.Clock.
var ErrNoFaultClock = errors.New("cluster: setting the clock requires Options.Clock")

// clock is the path of the file with the clock offset of one machine. All processes on the machine read it.
type clock string

func newClock(dir string) (clock, error) {
	c := clock(filepath.Join(dir, "clock"))
	return c, c.set(0)
}

// set writes the offset, truncated to whole seconds, to the file. With a negative offset, the clock is behind.
func (c clock) set(offset time.Duration) error {
	if c == "" {
		return ErrNoFaultClock
	}
	f, err := os.OpenFile(string(c), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("clock: %w", err)
	}
	b := binary.NativeEndian.AppendUint64(nil, uint64(offset/time.Second))
	_, err = f.WriteAt(b, 0)
	return errors.Join(err, f.Close())
}

func (c clock) environment() []string {
	if c == "" {
		return nil
	}
	return []string{clockVariable + "=" + string(c)}
}

// SetClock sets the clock offset of the node's machine, whether or not the node is running. With a negative offset, the
// clock is behind. It returns ErrNoFaultClock without Options.Clock.
func (n *Node) SetClock(offset time.Duration) error { return n.clock.set(offset) }
