// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/crc"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// StatePart is a part of the state of a queue that moves to another pair. The pairs have one kind.
type StatePart struct {
	Pairs []txn.StatePair
	// Last reports whether no pairs follow. Pairs is then empty, like in the last txn.OpImportState.
	Last bool
}

// ExportState returns the pairs of the state of a queue that follow the given key, for a txn.OpImportState. The queue
// must be fenced, or complete and incoming, under the epoch. after is empty for the first part. The values of the pairs
// have at most about maxBytes bytes, but there is at least one pair. The messages of the queue can be read with Read.
//
// If the queue has message IDs that are not in page.db yet, ExportState writes a checkpoint. Errors: ErrNotFenced,
// ErrClosed, ErrFailed, index.ErrCorrupt, and the errors of Checkpoint.
func (s *Store) ExportState(ctx context.Context, id, epoch uint64, after []byte, maxBytes int) (StatePart, error) {
	for written := false; ; written = true {
		if err := s.Usable(); err != nil {
			return StatePart{}, err
		}
		p := partBuilder{left: maxBytes}
		inTree, err := s.exportMemory(id, epoch, after, &p)
		switch {
		case err != nil:
			return StatePart{}, err
		case len(p.pairs) > 0:
			return StatePart{Pairs: p.pairs}, nil
		case inTree || written:
			return s.exportIDs(id, after, &p)
		}
		if _, err := s.Checkpoint(ctx); err != nil {
			return StatePart{}, fmt.Errorf("export message IDs: %w", err)
		}
	}
}

// partBuilder collects pairs of one kind.
type partBuilder struct {
	pairs []txn.StatePair
	left  int
}

// add adds a pair and reports whether more pairs fit.
func (b *partBuilder) add(p txn.StatePair) bool {
	if len(b.pairs) > 0 && (p.Key[0] != b.pairs[0].Key[0] || b.left < len(p.Value) || len(b.pairs) == txn.MaxStatePairs) {
		return false
	}
	b.pairs = append(b.pairs, p)
	b.left -= len(p.Key) + len(p.Value)
	return true
}

// exportMemory adds the pairs in memory. inTree reports whether all message IDs are in the tree.
func (s *Store) exportMemory(id, epoch uint64, after []byte, b *partBuilder) (inTree bool, err error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.Queue(id)
	if q == nil || !s.state.Exportable(q, epoch) {
		return false, fmt.Errorf("%w: queue %d, epoch %d", ErrNotFenced, id, epoch)
	}
	for p := range s.state.ExportedState(q, after) {
		if !b.add(p) {
			break
		}
	}
	return q.IDsWritten(), nil
}

// exportIDs adds the message IDs in the tree.
func (s *Store) exportIDs(id uint64, after []byte, b *partBuilder) (StatePart, error) {
	pages := s.pages.Acquire()
	defer s.pages.Release()
	keys := queue.ExportedIDs(id, after)
	s.mu.RLock()
	guard := pages.File.ReadGuard() // acquired before the view, so that no page of the view is overwritten
	view := pages.Index.View()
	s.mu.RUnlock()
	defer guard.Release()
	it := view.Scan(keys.From, keys.To)
	for it.Next() {
		s.mu.RLock()
		p, ok, err := s.state.ExportedID(it.Key(), it.Value())
		s.mu.RUnlock()
		if err != nil {
			return StatePart{}, s.repair.IndexError(fmt.Errorf("%w: %w", index.ErrCorrupt, err))
		}
		if ok && !b.add(p) {
			break
		}
	}
	if err := it.Err(); err != nil {
		return StatePart{}, s.repair.IndexError(err)
	}
	return StatePart{Pairs: b.pairs, Last: len(b.pairs) == 0}, nil
}

// MoveDigest is a digest of the contents of a queue that is comparable between pairs.
type MoveDigest struct {
	// SHA256 covers the live messages with their sequences, and the state of the queue.
	SHA256   [sha256.Size]byte
	Messages uint64
}

const (
	digestStateBytes    = 1 << 20
	digestReadBytes     = 1 << 20
	digestReadMessages  = 1000
	digestMessageHeader = 16 // sequence, length, CRC32C
)

// DigestMoved returns the digest of a queue that is fenced, or complete and incoming, under the epoch. The digests of
// both are equal. It reads all live messages. The errors are those of ExportState and Read.
func (s *Store) DigestMoved(ctx context.Context, id, epoch uint64) (d MoveDigest, err error) {
	h := sha256.New()
	var after []byte
	for {
		part, err := s.ExportState(ctx, id, epoch, after, digestStateBytes)
		if err != nil {
			return d, err
		}
		if part.Last {
			break
		}
		for _, p := range part.Pairs {
			var lengths [8]byte
			binary.LittleEndian.PutUint32(lengths[:], uint32(len(p.Key)))
			binary.LittleEndian.PutUint32(lengths[4:], uint32(len(p.Value)))
			for _, b := range [...][]byte{lengths[:], p.Key, p.Value} {
				_, _ = h.Write(b) // never fails
			}
			after = p.Key
		}
	}
	req := ReadRequest{
		Queue: id, From: 1, MaxMessages: digestReadMessages, MaxBytes: digestReadBytes, Buffer: new(ReadBuffer),
	}
	for {
		messages, next, err := s.Read(ctx, req, nil)
		if err != nil {
			return d, fmt.Errorf("digest of queue %d: %w", id, err)
		}
		if len(messages) == 0 {
			break
		}
		for _, m := range messages {
			var b [digestMessageHeader]byte
			binary.LittleEndian.PutUint64(b[:], m.Sequence)
			binary.LittleEndian.PutUint32(b[8:], uint32(len(m.Record)))
			binary.LittleEndian.PutUint32(b[12:], crc.Of(m.Record))
			_, _ = h.Write(b[:])
		}
		d.Messages += uint64(len(messages))
		req.From = next
	}
	h.Sum(d.SHA256[:0])
	// The queue may have been changed or taken in the meantime.
	s.mu.RLock()
	q := s.state.Queue(id)
	same := q != nil && s.state.Exportable(q, epoch)
	s.mu.RUnlock()
	if !same {
		return MoveDigest{}, fmt.Errorf("%w: queue %d, epoch %d", ErrNotFenced, id, epoch)
	}
	return d, nil
}
