// SPDX-License-Identifier: Apache-2.0

//go:build deep

package hostile

import (
	"golang.org/x/sys/unix"
)

// yieldProcessor gives this thread a processor only while no other process wants it, not even for the rest of a slice.
func yieldProcessor() error {
	return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
}
