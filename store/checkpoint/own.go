// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/page"
)

// ownBatch is the number of extents per call of OwnExtents' fn.
const ownBatch = 4096

// OwnExtents calls fn with the extents without messages: first those of the tree, then, with bitmap set, those of the
// bitmap of used pages. They are passed in batches, which fn may change. Only the inner nodes of the tree are read.
func (c *Checkpoint) OwnExtents(ctx context.Context, fn func(extents []page.Extent, bitmap bool)) error {
	batch := make([]page.Extent, 0, ownBatch)
	err := c.view.WalkExtents(func(ext page.Extent, level int) error {
		if batch = append(batch, ext); len(batch) == cap(batch) {
			fn(batch, false)
			batch = batch[:0]
		}
		if level == 0 {
			return ctx.Err()
		}
		return c.pace.Did(ctx, int(ext.Pages)*c.file.PageSize())
	})
	if err != nil {
		return fmt.Errorf("walk index: %w", err)
	}
	fn(batch, false)
	own, err := c.file.OwnExtents(c.pin)
	if err != nil {
		return fmt.Errorf("read free-page map: %w", err)
	}
	fn(own, true)
	return nil
}
