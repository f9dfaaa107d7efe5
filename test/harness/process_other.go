// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package harness

import "syscall"

// processAttributes: only Linux can kill a child together with its parent. Elsewhere a node that outlives this process
// has to be ended by hand.
func processAttributes() *syscall.SysProcAttr { return nil }

// waitStopped does not wait here: for a moment a paused node may still do something.
func waitStopped(int) error { return nil }
