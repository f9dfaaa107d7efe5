// SPDX-License-Identifier: Apache-2.0

//go:build !faultdisk

package node

import (
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// disk returns the filesystem of the store if Options.FS is nil.
func disk() (vfs.FS, error) { return vfs.OS(), nil }

// bootID returns a simulated boot ID; empty means the kernel's.
func bootID() string { return "" }
