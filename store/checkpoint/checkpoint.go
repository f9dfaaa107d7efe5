// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/pace"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
)

// Checkpoint is a checkpoint of a page file, opened for reading: it stays as it is until Close, whatever is written
// beside it. It is for one goroutine at a time.
type Checkpoint struct {
	file  *page.File
	pin   *page.Pin
	meta  page.Meta
	view  *tree.View
	pace  *pace.Pacer
	state *queue.State // nil until it is asked for
}

// CheckpointOptions say how to read a checkpoint.
type Options struct {
	// CacheBytes bounds the nodes of the tree that are held in memory; 0 stands for 32 MiB.
	CacheBytes int64
	// Pace, if not nil, makes the reader pause.
	Pace *pace.Pacer
}

// defaultCacheBytes bounds the nodes of the tree that the offline tools hold.
const defaultCacheBytes = 32 << 20

// OpenCheckpoint opens the checkpoint that pin keeps. Close releases the pin.
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

// Meta describes the checkpoint.
func (c *Checkpoint) Meta() page.Meta { return c.meta }

// State loads the state machine as the checkpoint has it, once. It must not be changed.
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

// Live tells what the checkpoint's own state wants.
func (c *Checkpoint) Live() (Liveness, error) {
	state, err := c.State()
	return Liveness{state: state, lock: noLock{}}, err
}

// CountMessages counts the messages that are stored, those included that no subscription wants any more and that share
// a page with others. It reads the index of messages, not the messages.
func (c *Checkpoint) CountMessages(ctx context.Context) (n uint64, err error) {
	err = c.Runs(ctx, WalkOptions{IndexOnly: true}, func(e *index.Entry, _ []byte, _ error) error {
		n += e.Count
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("count messages: %w", err)
	}
	return n, nil
}
