// SPDX-License-Identifier: Apache-2.0

// Package checkpoint reads a pinned checkpoint of a page file. It can iterate over the messages of the checkpoint
// (Checkpoint.Extents), verify and hash the content, simulate other page sizes, and dump pages.
package checkpoint

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/throttle"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Checkpoint is an open checkpoint of a page file. It does not change until Close, regardless of concurrent writes. It
// is not safe for concurrent use.
type Checkpoint struct {
	file  *page.File
	pin   *page.Pin
	meta  page.Meta
	view  *tree.View
	pace  *throttle.Pacer
	state *queue.State // nil until it is loaded
}

// Options configures Open.
type Options struct {
	CacheBytes int64 // cache size for tree nodes; the default is 32 MiB
	// Pace limits the rate of reads, if not nil.
	Pace *throttle.Pacer
}

const defaultCacheBytes = 32 << 20

// Open opens the checkpoint that pin protects. Close releases pin.
func Open(file *page.File, pin *page.Pin, o Options) *Checkpoint {
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCacheBytes
	}
	meta := pin.Meta()
	view := tree.New(file, meta.Root, tree.Options{CacheBytes: o.CacheBytes}).View()
	return &Checkpoint{file: file, pin: pin, meta: meta, view: view, pace: o.Pace}
}

// SetPace replaces Options.Pace.
func (c *Checkpoint) SetPace(p *throttle.Pacer) { c.pace = p }

// Close releases the pin.
func (c *Checkpoint) Close() { c.pin.Release() }

// Meta returns the metadata of the checkpoint.
func (c *Checkpoint) Meta() page.Meta { return c.meta }

// State returns the state machine of the checkpoint, which must not be modified.
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

// Live returns a Liveness for the state in the checkpoint.
func (c *Checkpoint) Live() (Liveness, error) {
	state, err := c.State()
	return NewLiveness(func(fn func(*queue.State)) { fn(state) }), err
}

// CountMessages returns the number of stored messages, including dead messages that share an extent with live messages.
// It reads only the message index.
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

// LoadState rebuilds the state machine from a checkpoint's tree. It skips the message IDs, the message index and the
// schedule, which have entries for single messages or extents.
func LoadState(v *tree.View, meta page.Meta) (*queue.State, error) {
	l := queue.NewLoader()
	ids, schedule := queue.IDKeys(), queue.ScheduleKeys()
	for _, r := range [][2][]byte{
		{nil, ids.From}, {ids.To, []byte{index.Letter}}, {[]byte{index.Letter + 1}, schedule.From}, {schedule.To, nil},
	} {
		it := v.Once().Scan(r[0], r[1])
		for it.Next() {
			if err := l.Put(it.Key(), it.Value()); err != nil {
				return nil, fmt.Errorf("%w: checkpoint record %q: %w", index.ErrDataLoss, it.Key(), err)
			}
		}
		if err := it.Err(); err != nil {
			return nil, fmt.Errorf("read checkpoint: %w", err)
		}
	}
	state, err := l.Finish(meta.Position.LSN)
	if err != nil {
		return nil, fmt.Errorf("%w: checkpoint: %w", index.ErrDataLoss, err)
	}
	return state, nil
}

// ReadDir locks the data directory of a stopped node and calls fn with the last checkpoint. Its errors include those of
// datadir.Lock and of fn.
func ReadDir(fsys vfs.FS, dir string, fn func(*Checkpoint) error) (err error) {
	lock, err := datadir.Lock(fsys, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	file, err := page.Open(fsys, datadir.PageFile(dir), page.Options{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("open page.db: %w", err)
	}
	return ReadFile(file, fn)
}

// ReadFile calls fn with the last checkpoint of an open page file, and closes the file.
func ReadFile(file *page.File, fn func(*Checkpoint) error) error {
	c := Open(file, file.Pin(), Options{})
	err := fn(c)
	c.Close()
	return errors.Join(err, file.Close())
}
