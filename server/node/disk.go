// SPDX-License-Identifier: Apache-2.0

//go:build !faultdisk

package node

import (
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// disk is the filesystem of the store, unless Options has another one.
func disk() (vfs.FS, error) { return vfs.OS(), nil }

// bootID names the boot of the machine; empty for what the kernel says.
func bootID() string { return "" }
