//go:build unix && !linux

package cluster

import "syscall"

// dieWithUs cannot be had here: nodes outlive a test process that is killed.
func dieWithUs() *syscall.SysProcAttr { return nil }
