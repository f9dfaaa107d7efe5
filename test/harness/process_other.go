// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package harness

import "syscall"

// processAttributes returns nil, because only Linux can kill a child together with its parent. On other systems, a node
// that is still running after this process must be stopped manually.
func processAttributes() *syscall.SysProcAttr { return nil }

// waitStopped does not wait on this system, so a paused node may still run for a moment.
func waitStopped(int) error { return nil }
