// SPDX-License-Identifier: Apache-2.0

package faultdisk

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

const (
	// VariableMoves is the environment variable with a directory of files. While it contains a file with the name of a
	// step, moves of queues to the pair of the node stop before the step. The node reports this with a file that has the
	// additional suffix MoveReached.
	VariableMoves = "FAULTDISK_MOVES"
	// MoveReached is the suffix of the files that nodes create in the directory of VariableMoves.
	MoveReached = ".reached"
)

const moveInterval = 2 * time.Millisecond

// MoveStep returns a function that waits before a step of a move of queues, as described at VariableMoves. Without the
// variable, MoveStep returns nil.
func MoveStep() func(ctx context.Context, step string) error {
	dir := os.Getenv(VariableMoves)
	if dir == "" {
		return nil
	}
	return func(ctx context.Context, step string) error {
		stop := filepath.Join(dir, step)
		if _, err := os.Stat(stop); err != nil {
			return nil
		}
		if err := os.WriteFile(stop+MoveReached, nil, 0o600); err != nil {
			return fmt.Errorf("move step: %w", err)
		}
		tick := time.NewTicker(moveInterval)
		defer tick.Stop()
		for {
			if _, err := os.Stat(stop); errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("move step: %w", ctx.Err())
			}
		}
	}
}
