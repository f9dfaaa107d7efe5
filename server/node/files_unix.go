// SPDX-License-Identifier: Apache-2.0

//go:build unix

package node

import "syscall"

func openFilesLimit() (uint64, bool) {
	var r syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r) != nil {
		return 0, false
	}
	return uint64(r.Cur), true //nolint:unconvert // the field has another type on some systems
}
