// SPDX-License-Identifier: Apache-2.0

package harness

import "syscall"

// processAttributes has the kernel kill a node when this process dies, however it dies, and keeps Ctrl-C in the
// terminal from the nodes: this process stops them in its own order. The kernel looks at the thread that started the
// node; Go ends a thread only with a goroutine that is locked to it, and none here is.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}
