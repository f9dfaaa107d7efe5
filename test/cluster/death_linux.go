package cluster

import "syscall"

// dieWithUs has the kernel kill a node when the test process dies, however it dies. The thread that starts the node must live as
// long as the test: Go ends a thread only with a goroutine that locked it, and none here does.
func dieWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
