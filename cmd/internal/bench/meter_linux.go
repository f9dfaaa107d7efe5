// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// ticksPerSecond is the unit of times in /proc: USER_HZ, which is 100 on every architecture supported by Go.
const ticksPerSecond = 100

// readUsage returns the usage of a process. Unreadable values are 0.
func readUsage(pid int) Usage {
	var u Usage
	dir := fmt.Sprintf("/proc/%d/", pid)
	if b, err := os.ReadFile(dir + "stat"); err == nil {
		// The program name may contain spaces; the relevant fields follow its closing parenthesis.
		f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		const user, system = 11, 12 // fields 14 and 15 of the whole line
		if len(f) > system {
			u.CPU = (number(f[user]) + number(f[system])) / ticksPerSecond
			u.System = number(f[system]) / ticksPerSecond
		}
	}
	u.RSS = field(dir+"status", "VmRSS:") * 1024 / 1e6
	u.Virtual = field(dir+"status", "VmSize:") * 1024 / 1e6
	u.PeakRSS = field(dir+"status", "VmHWM:") * 1024 / 1e6
	u.Dirtied = (field(dir+"io", "write_bytes:") - field(dir+"io", "cancelled_write_bytes:")) / 1e6
	u.Read, u.Written = field(dir+"io", "rchar:")/1e6, field(dir+"io", "wchar:")/1e6
	return u
}

// resetPeak resets the peak resident memory of a process. It ignores errors.
func resetPeak(pid int) {
	const resetHighWaterMark = "5"
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte(resetHighWaterMark), 0)
}

// deviceWritten returns the total amount written to the block device that contains dir, in MB; 0 if dir is empty or
// not on a block device.
func deviceWritten(dir string) float64 {
	var st unix.Stat_t
	if dir == "" || unix.Stat(dir, &st) != nil {
		return 0
	}
	b, err := os.ReadFile(fmt.Sprintf("/sys/dev/block/%d:%d/stat", unix.Major(st.Dev), unix.Minor(st.Dev)))
	if err != nil {
		return 0
	}
	const sectorsWritten, sectorBytes = 6, 512
	f := bytes.Fields(b)
	if len(f) <= sectorsWritten {
		return 0
	}
	return number(f[sectorsWritten]) * sectorBytes / 1e6
}

// field returns the number after a key at the beginning of a line of file; 0 if no such line can be read.
func field(file, key string) float64 {
	b, err := os.ReadFile(file)
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(b) {
		if f := bytes.Fields(line); len(f) > 1 && string(f[0]) == key {
			return number(f[1])
		}
	}
	return 0
}

func number(b []byte) float64 {
	n, err := strconv.ParseFloat(string(b), 64)
	if err != nil {
		return 0
	}
	return n
}
