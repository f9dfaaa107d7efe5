// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// StatePart is a part of the state of a queue that moves to another pair of nodes. All its key-value pairs have the
// same kind, which is the first byte of the key.
type StatePart struct {
	Pairs []txn.StatePair
	// Last reports whether no pairs follow. Pairs is then empty.
	Last bool
}

const (
	// maxPartUnwritten and maxDigestUnwritten limit the number of message IDs that an export collects from memory. With
	// more, it writes a checkpoint first.
	maxPartUnwritten   = 10_000
	maxDigestUnwritten = 1_000_000
)

// ExportState returns the pairs of the state of a queue that follow the given key, for a txn.OpImportState. The queue
// must be fenced, or complete and incoming, under the epoch. after is empty for the first part. A part that is not
// the last one has at least one pair, and at most about maxBytes bytes of keys and values.
//
// ExportState may write a checkpoint. Errors include ErrNotFenced, index.ErrCorrupt, and those of Checkpoint.
func (s *Store) ExportState(ctx context.Context, id, epoch uint64, after []byte, maxBytes int) (StatePart, error) {
	p := partBuilder{left: maxBytes}
	if err := s.exportMemory(id, epoch, after, &p); err != nil {
		return StatePart{}, err
	}
	if len(p.pairs) == 0 {
		if err := s.exportIDs(ctx, id, after, maxPartUnwritten, p.add); err != nil {
			return StatePart{}, err
		}
	}
	return StatePart{Pairs: p.pairs, Last: len(p.pairs) == 0}, nil
}

// WriteIDs writes a checkpoint if a queue has many message IDs that are not in page.db yet, and reports whether it
// has written one. Errors include ErrNoQueue and those of Checkpoint.
func (s *Store) WriteIDs(ctx context.Context, id uint64) (written bool, _ error) {
	if err := s.Usable(); err != nil {
		return false, err
	}
	s.mu.RLock()
	q, unwritten := s.state.Queue(id), 0
	if q != nil {
		unwritten = q.UnwrittenIDs()
	}
	s.mu.RUnlock()
	switch {
	case q == nil:
		return false, fmt.Errorf("%w: queue %d", ErrNoQueue, id)
	case unwritten <= maxPartUnwritten/4: // more are added until the fence
		return false, nil
	}
	if _, err := s.Checkpoint(ctx); err != nil {
		return false, fmt.Errorf("write message IDs: %w", err)
	}
	return true, nil
}

// partBuilder collects pairs of one kind.
type partBuilder struct {
	pairs []txn.StatePair
	left  int
}

// add adds a pair if it fits, and reports whether it did.
func (b *partBuilder) add(p txn.StatePair) bool {
	if len(b.pairs) > 0 && (p.Key[0] != b.pairs[0].Key[0] || b.left < len(p.Value) || len(b.pairs) == txn.MaxStatePairs) {
		return false
	}
	b.pairs = append(b.pairs, p)
	b.left -= len(p.Key) + len(p.Value)
	return true
}

// exportMemory adds the pairs in memory, without message IDs.
func (s *Store) exportMemory(id, epoch uint64, after []byte, b *partBuilder) error {
	if err := s.Usable(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	q, err := s.exportable(id, epoch)
	if err != nil {
		return err
	}
	for p := range s.state.ExportedState(q, after) {
		if !b.add(p) {
			break
		}
	}
	return nil
}

// exportable returns a queue that is fenced, or complete and incoming, under the epoch. s.mu must be held.
func (s *Store) exportable(id, epoch uint64) (*queue.Queue, error) {
	q := s.state.Queue(id)
	if q == nil || !s.state.Exportable(q, epoch) {
		return nil, fmt.Errorf("%w: queue %d, epoch %d", ErrNotFenced, id, epoch)
	}
	return q, nil
}

// exportIDs calls add with the message IDs that follow a key, until add returns false. most is the maximum number of
// message IDs that are not in the tree yet; if there are more, exportIDs writes a checkpoint first.
func (s *Store) exportIDs(
	ctx context.Context, id uint64, after []byte, most int, add func(txn.StatePair) bool,
) error {
	for written := false; ; written = true {
		pages := s.pages.Acquire()
		keys := queue.ExportedIDs(id, after)
		s.mu.RLock()
		var unwritten []txn.StatePair
		q := s.state.Queue(id)
		many := q != nil && !written && q.UnwrittenIDs() > most
		if q != nil && !many {
			unwritten = q.ExportedUnwritten(after)
		}
		guard := pages.File.ReadGuard() // acquired before the view, so that no page of the view is overwritten
		view := pages.Index.View()
		s.mu.RUnlock()
		var err error
		if !many {
			err = s.mergeIDs(view.Scan(keys.From, keys.To), unwritten, add)
		}
		guard.Release()
		s.pages.Release()
		if !many || err != nil {
			return err
		}
		if _, err := s.Checkpoint(ctx); err != nil {
			return fmt.Errorf("export message IDs: %w", err)
		}
	}
}

// mergeIDs calls add with the pairs of the iterator and those that are not in the tree, in order.
func (s *Store) mergeIDs(it *tree.Iterator, unwritten []txn.StatePair, add func(txn.StatePair) bool) error {
	for it.Next() {
		s.mu.RLock()
		p, ok, err := s.state.ExportedID(it.Key(), it.Value())
		s.mu.RUnlock()
		if err != nil {
			return s.repair.IndexError(fmt.Errorf("%w: %w", index.ErrCorrupt, err))
		}
		if !ok {
			continue
		}
		for len(unwritten) > 0 && bytes.Compare(unwritten[0].Key, p.Key) <= 0 {
			ok = ok && !bytes.Equal(unwritten[0].Key, p.Key)
			if !add(unwritten[0]) {
				return nil
			}
			unwritten = unwritten[1:]
		}
		if ok && !add(p) {
			return nil
		}
	}
	if err := it.Err(); err != nil {
		return s.repair.IndexError(err)
	}
	for _, p := range unwritten {
		if !add(p) {
			break
		}
	}
	return nil
}

const digestStateBytes = 1 << 20

// DigestState returns the digest of the state of a queue that is fenced, or complete and incoming, under the epoch, and
// the number of its messages. The digests of a fenced queue and of its complete copy are equal. The errors are those of
// ExportState.
func (s *Store) DigestState(ctx context.Context, id, epoch uint64) (sum [sha256.Size]byte, messages uint64, _ error) {
	h := sha256.New()
	var after []byte
	add := func(p txn.StatePair) bool {
		var lengths [8]byte
		binary.LittleEndian.PutUint32(lengths[:], uint32(len(p.Key)))
		binary.LittleEndian.PutUint32(lengths[4:], uint32(len(p.Value)))
		for _, b := range [...][]byte{lengths[:], p.Key, p.Value} {
			_, _ = h.Write(b) // never fails
		}
		after = p.Key
		return true
	}
	for {
		part := partBuilder{left: digestStateBytes}
		if err := s.exportMemory(id, epoch, after, &part); err != nil {
			return sum, 0, err
		}
		if len(part.pairs) == 0 {
			break
		}
		for _, p := range part.pairs {
			add(p)
		}
	}
	if err := s.exportIDs(ctx, id, after, maxDigestUnwritten, add); err != nil {
		return sum, 0, err
	}
	// The queue may have been changed or taken in the meantime.
	s.mu.RLock()
	defer s.mu.RUnlock()
	q, err := s.exportable(id, epoch)
	if err != nil {
		return sum, 0, err
	}
	h.Sum(sum[:0])
	return sum, q.Messages(), nil
}
