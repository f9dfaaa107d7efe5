// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux && deep

package hostile

import "syscall"

// yieldProcessor gives this process the lowest priority.
func yieldProcessor() error { return syscall.Setpriority(syscall.PRIO_PROCESS, 0, 19) }
