// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/lockstep-mq/lockstep/store/crc"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

const (
	// applyRecords bounds how many records are applied under one hold of the lock, so that queries get in between.
	applyRecords = 512
	// catchUpBytes is how much is read from the log at once when it has to be.
	catchUpBytes = 1 << 20
)

// Apply applies the committed records up to and including LSN upTo, in order, and calls done for each one after it is
// visible. A record that is no transaction (a term start) has a nil result. The result is valid during the call; what
// it points to may be kept.
//
// The caller vouches that upTo is committed (INV-2, INV-5). Only one goroutine may call Apply. It waits while the
// messages in memory exceed their share of the memory budget, until the pager has written some.
func (s *Store) Apply(upTo uint64, done func(n uint64, r *txn.Result)) error {
	return s.ApplyUntil(nil, upTo, done)
}

// ApplyUntil is Apply, but it returns ErrInterrupted when it would have to wait and stop is closed.
func (s *Store) ApplyUntil(stop <-chan struct{}, upTo uint64, done func(n uint64, r *txn.Result)) error {
	s.NoteCommitted(upTo)
	for s.Applied().LSN < upTo {
		if err := s.waitForRoom(stop); err != nil {
			return err
		}
		frames, before, inMemory, err := s.nextFrames()
		if err != nil {
			return err
		}
		before, frames, err = s.applyFrames(frames, before, upTo, done)
		if inMemory {
			s.recent.trim(before, frames)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// nextFrames returns frames that follow the last applied record: from memory if they are still there, else from the
// log.
func (s *Store) nextFrames() (frames []byte, before lsn.Position, inMemory bool, err error) {
	applied := s.Applied()
	if frames, before, ok := s.recent.after(applied); ok {
		s.reader = nil // it holds a megabyte or more
		return frames, before, true, nil
	}
	frames, err = s.framesFromLog(applied)
	return frames, applied, false, err
}

// framesFromLog serves the start of a node and whatever else is not in memory.
func (s *Store) framesFromLog(after lsn.Position) ([]byte, error) {
	frames, last, err := s.readLog(after)
	if errors.Is(err, wal.ErrCut) || errors.Is(err, wal.ErrTrimmed) {
		// The log was cut, begun anew, or trimmed right behind the reader since it stopped here. A new one finds its
		// way.
		s.reader = nil
		frames, last, err = s.readLog(after)
	}
	if err != nil {
		return nil, err
	}
	s.readerAt = last
	if len(frames) > 4*catchUpBytes {
		s.reader = nil // its buffers have grown to a very large transaction
	}
	// The reader uses its buffer again; the messages in memory refer to these bytes until they are in pages.
	return slices.Clone(frames), nil
}

func (s *Store) readLog(after lsn.Position) ([]byte, lsn.Position, error) {
	if s.reader == nil || s.readerAt != after {
		var err error
		if s.reader, err = s.ReadLog(after.LSN + 1); err != nil {
			return nil, lsn.Position{}, err
		}
	}
	frames, last, n, err := s.reader.ReadBatch(catchUpBytes)
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, lsn.Position{}, fmt.Errorf("apply: read the log after %v: %w", after, err)
	case n == 0:
		return nil, lsn.Position{}, fmt.Errorf("apply: the log ends at %v: %w", after, io.ErrUnexpectedEOF)
	}
	return frames, last, nil
}

// applyFrames applies the frames that are neither applied yet nor beyond upTo. It returns the frames that are left, and
// the position before them.
func (s *Store) applyFrames(
	frames []byte, before lsn.Position, upTo uint64, done func(uint64, *txn.Result),
) (lsn.Position, []byte, error) {
	var err error
	for err == nil && len(frames) > 0 && before.LSN < upTo {
		s.results = s.results[:0]
		s.mu.Lock()
		stop := s.holds.limit(s.applied.LSN, upTo)
		if s.paused || s.applied.LSN >= stop && stop < upTo {
			s.mu.Unlock()
			break // and wait for the end of it in waitForRoom
		}
		before, frames, err = s.applySome(frames, before, stop)
		s.holds.reach(s.applied.LSN)
		s.touched = s.state.TakeTouched(s.touched[:0])
		s.clock.note(s.state)
		s.filters.Store(s.state.Filters())
		s.lanes.trim(s.laneCacheBytes(s.state.TailBytes()))
		s.mu.Unlock()
		// Also what was applied before an error: a caller waits for it.
		for i := range s.results {
			if r := &s.results[i]; done != nil {
				done(r.lsn, r.txnResult())
			}
		}
		s.watch.wake(s.touched)
		s.clock.tell()
	}
	if s.sinceCheckpoint.Load() > s.o.CheckpointBytes {
		s.wakePager()
	}
	return before, frames, err
}

// applySome applies some frames and adds what became of them to results. mu is held.
func (s *Store) applySome(frames []byte, before lsn.Position, upTo uint64) (lsn.Position, []byte, error) {
	for len(frames) > 0 && before.LSN < upTo && len(s.results) < applyRecords {
		f, rest, err := wal.NextFrame(frames, before) // verified when it was read or received, or made here
		if err != nil {
			return before, frames, fmt.Errorf("apply: record after %v: %w", before, err)
		}
		if f.Pos.LSN > s.applied.LSN {
			res := applyResult{lsn: f.Pos.LSN, isTxn: f.Kind == wal.KindTxn}
			if res.isTxn {
				res.result = s.state.ApplyWith(f.Pos.LSN, f.Payload, payloadChecksum(frames, f.Payload))
			} else {
				s.state.Advance(f.Pos.LSN)
			}
			if res.result.Code == txn.ErrNewerVersion {
				return before, frames, fmt.Errorf("apply: record %v: %w; upgrade this node to the version of its peer",
					f.Pos, res.result.Err())
			}
			s.results = append(s.results, res)
			s.applied = f.Pos
			s.sinceCheckpoint.Add(int64(len(frames) - len(rest)))
		}
		frames, before = rest, f.Pos
	}
	return before, frames, nil
}

// payloadChecksum gives the checksum of a payload, if it is so large that this takes less time than to compute it.
func payloadChecksum(frame, payload []byte) txn.Checksum {
	if len(payload) < crc.Worth {
		return txn.Checksum{}
	}
	return txn.Checksum{Known: true, Sum: wal.PayloadChecksum(frame)}
}

// applyResult is what became of one record.
type applyResult struct {
	lsn    uint64
	isTxn  bool
	result txn.Result
}

func (o *applyResult) txnResult() *txn.Result {
	if !o.isTxn {
		return nil
	}
	return &o.result
}

// Applied is the last record that was applied.
func (s *Store) Applied() lsn.Position {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.applied
}

// waitForRoom blocks while the messages in memory exceed their share of the budget, while a rewrite copies what was
// applied, and while a DigestAt takes a checkpoint of just that. It returns ErrInterrupted when stop is closed.
func (s *Store) waitForRoom(stop <-chan struct{}) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mustWait() {
		return s.usable()
	}
	waited := make(chan struct{})
	defer close(waited)
	go func() {
		select {
		case <-stop:
			s.wakeRoom()
		case <-waited:
		}
	}()
	for s.mustWait() {
		if err := s.usable(); err != nil {
			return err
		}
		select {
		case <-stop:
			return ErrInterrupted
		default:
		}
		s.wakePager()
		s.room.Wait()
	}
	return s.usable()
}

// mustWait reports whether nothing may be applied now. mu is held.
func (s *Store) mustWait() bool {
	return s.paused || s.holds.holdsAt(s.applied.LSN) || s.state.TailBytes() > s.tailLimit()
}

// awaitRoomLimit is how long AwaitRoom waits at most: a pager that cannot write must not stop what could go on.
const awaitRoomLimit = 10 * time.Second

// AwaitRoom waits until messages have left memory for pages, if there is no room in memory beside them for a
// transaction of so many bytes. It is for very large ones, before they are accepted: the next one then does not come
// into memory beside the last one. It waits for what is in memory when it is called and for nothing that comes later,
// for 10 s at most, and not while pages cannot be written; when ctx ends, it returns.
func (s *Store) AwaitRoom(ctx context.Context, bytes int64) {
	ctx, cancel := context.WithTimeout(ctx, awaitRoomLimit)
	defer cancel()
	defer context.AfterFunc(ctx, s.wakeRoom)()
	s.mu.Lock()
	defer s.mu.Unlock()
	written, before, rest := s.written, s.state.TailBytes(), s.o.MemoryBudget/pagerRest
	for ctx.Err() == nil && s.usable() == nil && s.tailLimit() == s.o.MemoryBudget/2 {
		tail := s.state.TailBytes()
		if tail <= rest || tail+bytes <= s.tailLimit() || s.written-written >= before-rest {
			return
		}
		s.wakePager()
		s.room.Wait()
	}
}

// tailLimit is how many bytes of messages may be in memory. On a full disk the pager cannot make room, and the
// acknowledgements that would free some must still be applied: then the messages may take the whole budget.
func (s *Store) tailLimit() int64 {
	if s.damage.giveUp.Load() {
		return math.MaxInt64
	}
	if s.noSpace.Load() || s.IndexDamage() != nil {
		return s.o.MemoryBudget
	}
	return s.o.MemoryBudget / 2
}
