// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/page"
)

// ownBatch is the number of extents per call of OwnRuns' fn.
const ownBatch = 4096

// OwnRuns calls fn with the extents without messages: first those of the tree, then, with bitmap set, those of the
// bitmap of used pages. They are passed in batches, which fn may change. Only the inner nodes of the tree are read.
func (c *Checkpoint) OwnRuns(ctx context.Context, fn func(runs []page.Run, bitmap bool)) error {
	batch := make([]page.Run, 0, ownBatch)
	err := c.view.WalkRuns(func(run page.Run, level int) error {
		if batch = append(batch, run); len(batch) == cap(batch) {
			fn(batch, false)
			batch = batch[:0]
		}
		if level == 0 {
			return ctx.Err()
		}
		return c.pace.Did(ctx, int(run.Pages)*c.file.PageSize())
	})
	if err != nil {
		return fmt.Errorf("walk index: %w", err)
	}
	fn(batch, false)
	own, err := c.file.OwnRuns(c.pin)
	if err != nil {
		return fmt.Errorf("read free-page map: %w", err)
	}
	fn(own, true)
	return nil
}
