// SPDX-License-Identifier: Apache-2.0

//go:build unix

package message

import (
	"os"

	"golang.org/x/sys/unix"
)

// replaced reports whether f is closed, or is /dev/null opened for reading and writing, as by the Go runtime. A shell
// opens it for writing only.
func replaced(f *os.File) bool {
	raw, err := f.SyscallConn()
	if err != nil {
		return true
	}
	var flags int
	var flagsErr error
	if err := raw.Control(func(fd uintptr) {
		flags, flagsErr = unix.FcntlInt(fd, unix.F_GETFL, 0)
	}); err != nil || flagsErr != nil {
		return true
	}
	info, err := f.Stat()
	if err != nil {
		return true
	}
	null, err := os.Stat(os.DevNull)
	return err == nil && os.SameFile(info, null) && flags&unix.O_ACCMODE == unix.O_RDWR
}
