// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// Digest is a hash of a store's logical content.
type Digest struct {
	Position lsn.Position
	// Content covers the state (such as queues, subscriptions, acknowledgements and producers), message IDs, the
	// schedule and every needed message. It does not depend on page size or page numbers, and omits the state of the
	// site.
	Content  [sha256.Size]byte
	Messages uint64
}

// Digest computes the digest of the checkpoint, for which it reads all messages. It returns index.ErrDataLoss if a
// message cannot be read.
func (c *Checkpoint) Digest(ctx context.Context) (Digest, error) {
	state, err := c.State()
	if err != nil {
		return Digest{}, err
	}
	h := sha256.New()
	for key, value := range state.All {
		if queue.IsSiteKey(key) {
			continue
		}
		hashField(h, key)
		hashField(h, value)
	}
	d := Digest{Position: c.meta.Position}
	for _, keys := range []queue.KeyRange{queue.ScheduleKeys(), queue.IDKeys()} {
		err = c.CopyTree(ctx, keys.From, keys.To, func(key, value []byte) error {
			hashField(h, key)
			if len(value) > 0 {
				hashField(h, value)
			}
			return nil
		})
		if err != nil {
			return d, err
		}
	}
	err = c.Extents(ctx, WalkOptions{}, func(e *index.Entry, payload []byte, err error) error {
		if err != nil {
			return fmt.Errorf("%w: queue %d, sequences %d to %d: %w", index.ErrDataLoss, e.Queue, e.First, e.Last(),
				err)
		}
		n, err := hashExtent(h, state, e, payload)
		d.Messages += n
		return err
	})
	h.Sum(d.Content[:0])
	return d, err
}

// hashExtent hashes the needed messages of an extent. It skips dead messages.
func hashExtent(h hash.Hash, state *queue.State, e *index.Entry, payload []byte) (n uint64, err error) {
	q := state.Queue(e.Queue)
	if q == nil {
		return 0, fmt.Errorf("%w: page %d belongs to missing queue %d", index.ErrDataLoss, e.Extent.First,
			e.Queue)
	}
	r, err := index.NewExtentReader(payload)
	if err != nil {
		return 0, err
	}
	var head [16]byte
	for {
		seq, record, ok, err := r.Next()
		if err != nil || !ok {
			return n, err
		}
		if q.Dead(seq) {
			continue
		}
		binary.LittleEndian.PutUint64(head[:], e.Queue)
		binary.LittleEndian.PutUint64(head[8:], seq)
		hashField(h, head[:])
		hashField(h, record)
		n++
	}
}

// hashField hashes the length and the bytes of a field.
func hashField(h hash.Hash, b []byte) {
	var size [8]byte
	binary.LittleEndian.PutUint64(size[:], uint64(len(b)))
	h.Write(size[:])
	h.Write(b)
}
