// SPDX-License-Identifier: Apache-2.0

//go:build deep

package hostile

import (
	"golang.org/x/sys/unix"
)

// yieldProcessor makes the scheduler run this thread only while no other process is runnable.
func yieldProcessor() error {
	return unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0)
}
