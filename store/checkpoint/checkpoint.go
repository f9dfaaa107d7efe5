// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/throttle"
	"github.com/lockstep-mq/lockstep/store/tree"
)

// Checkpoint is a checkpoint of a page file, open for reading: it does not change until Close, regardless of
// concurrent writes. It is not safe for concurrent use.
type Checkpoint struct {
	file  *page.File
	pin   *page.Pin
	meta  page.Meta
	view  *tree.View
	pace  *throttle.Pacer
	state *queue.State // nil until it is loaded
}

// Options are the options of Open.
type Options struct {
	// CacheBytes limits the memory of cached tree nodes; 0 means 32 MiB.
	CacheBytes int64
	// Pace, if not nil, limits the rate of reads.
	Pace *throttle.Pacer
}

// defaultCacheBytes limits the memory of cached tree nodes in the offline tools.
const defaultCacheBytes = 32 << 20

// Open opens the checkpoint held by pin. Close releases the pin.
func Open(file *page.File, pin *page.Pin, o Options) *Checkpoint {
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCacheBytes
	}
	meta := pin.Meta()
	view := tree.New(file, meta.Root, tree.Options{CacheBytes: o.CacheBytes}).View()
	return &Checkpoint{file: file, pin: pin, meta: meta, view: view, pace: o.Pace}
}

// Close releases the pin.
func (c *Checkpoint) Close() { c.pin.Release() }

// Meta returns the description of the checkpoint.
func (c *Checkpoint) Meta() page.Meta { return c.meta }

// State loads the state machine of the checkpoint, once. It must not be changed.
func (c *Checkpoint) State() (*queue.State, error) {
	if c.state == nil {
		state, err := LoadState(c.view, c.meta)
		if err != nil {
			return nil, err
		}
		c.state = state
	}
	return c.state, nil
}

// Live returns the liveness of messages in the checkpoint's own state.
func (c *Checkpoint) Live() (Liveness, error) {
	state, err := c.State()
	return NewLiveness(func(fn func(*queue.State)) { fn(state) }), err
}

// CountMessages returns the number of stored messages, including unneeded ones that share a page with others. It reads
// only the message index.
func (c *Checkpoint) CountMessages(ctx context.Context) (n uint64, err error) {
	err = c.Extents(ctx, WalkOptions{IndexOnly: true}, func(e *index.Entry, _ []byte, _ error) error {
		n += e.Count
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("count messages: %w", err)
	}
	return n, nil
}
