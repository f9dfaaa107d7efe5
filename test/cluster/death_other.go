// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package cluster

import "syscall"

// dieWithUs cannot be had here: nodes outlive a test process that is killed.
func dieWithUs() *syscall.SysProcAttr { return nil }

// waitStopped does not wait here: for a moment a paused node may still do something.
func waitStopped(int) error { return nil }
