// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package harness

import "syscall"

// processAttributes: only Linux can kill a child together with its parent. Elsewhere a node that outlives this process
// has to be ended by hand.
func processAttributes() *syscall.SysProcAttr { return nil }
