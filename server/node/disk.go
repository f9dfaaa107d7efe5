// SPDX-License-Identifier: Apache-2.0

//go:build !faultdisk

package node

import (
	"context"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// disk returns the default filesystem of the store, used if Options.FS is nil.
func disk() (vfs.FS, error) { return vfs.OS(), nil }

// bootID returns a simulated boot ID. If it is empty, the boot ID of the kernel is used.
func bootID() string { return "" }

// moveStep returns the default of Environment.MoveStep.
func moveStep() func(ctx context.Context, step string) error { return nil }
