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
	"github.com/lockstep-mq/lockstep/store/pager"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

const (
	// applyRecords is the maximum number of records applied before mu is released.
	applyRecords = 512
	// applyChanges is the number of schedule changes after which mu is released.
	applyChanges = 8192
	catchUpBytes = 1 << 20
)

// Apply applies the committed records up to and including LSN upTo, in order, and calls done for each record once it
// is visible. For a record that is not a transaction (a term start), r is nil. Otherwise *r is valid only until done
// returns; the data to which its fields point may be retained.
//
// The caller guarantees that upTo is committed (INV-2, INV-5). Only one goroutine may call Apply. Apply blocks while
// memory is short, or while another operation, such as a digest at the applied LSN, holds it.
func (s *Store) Apply(upTo uint64, done func(n uint64, r *txn.Result)) error {
	return s.ApplyUntil(nil, upTo, done)
}

// ApplyUntil is like Apply, but returns ErrInterrupted if stop is closed while it blocks.
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

func (s *Store) nextFrames() (frames []byte, before lsn.Position, inMemory bool, err error) {
	applied := s.Applied()
	if frames, before, ok := s.recent.after(applied); ok {
		s.reader = nil // release at least a megabyte of buffers
		return frames, before, true, nil
	}
	frames, err = s.framesFromLog(applied)
	return frames, applied, false, err
}

func (s *Store) framesFromLog(after lsn.Position) ([]byte, error) {
	frames, last, err := s.readLog(after)
	if errors.Is(err, wal.ErrTruncated) || errors.Is(err, wal.ErrTrimmed) {
		// The log was truncated, reset or trimmed at the position of the reader. Retry with a new reader.
		s.reader = nil
		frames, last, err = s.readLog(after)
	}
	if err != nil {
		return nil, err
	}
	s.readerAt = last
	if len(frames) > 4*catchUpBytes {
		s.reader = nil // its buffers have grown for a very large transaction
	}
	// The reader reuses its buffer, but the messages in memory refer to these bytes until the messages are written to
	// pages.
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

// applyFrames applies frames up to LSN upTo and calls done for each record, without holding mu. It returns the
// remaining frames and the position before them. It can stop earlier, for example at a hold.
func (s *Store) applyFrames(
	frames []byte, before lsn.Position, upTo uint64, done func(uint64, *txn.Result),
) (lsn.Position, []byte, error) {
	var err error
	for err == nil && len(frames) > 0 && before.LSN < upTo {
		s.results = s.results[:0]
		release := s.readsIDs() // before mu: Pager.Acquire comes first in the lock order
		s.mu.Lock()
		stop := s.holds.limit(s.applied.LSN, upTo)
		if s.paused || s.applied.LSN >= stop && stop < upTo {
			s.mu.Unlock()
			release()
			break // waitForRoom waits for the release of the hold
		}
		before, frames, err = s.applySome(frames, before, stop)
		s.holds.reach(s.applied.LSN)
		s.touched = s.state.TakeTouched(s.touched[:0])
		siteChanged := s.state.TakeSiteChanged()
		s.clock.update(s.state)
		s.filters.Store(s.state.Filters())
		s.dedups.Store(s.state.Deduplicates())
		s.lanes.trim(s.laneCacheBytes(s.state.TailBytes()))
		s.mu.Unlock()
		release()
		// Report the results even after an error.
		for i := range s.results {
			if r := &s.results[i]; done != nil {
				done(r.lsn, r.txnResult())
			}
		}
		s.watch.wake(s.touched)
		if siteChanged {
			s.site.wake()
		}
		s.clock.notify()
	}
	if s.sinceCheckpoint.Load() > s.o.CheckpointBytes {
		s.pages.Wake()
	}
	return before, frames, err
}

// applySome applies records up to LSN upTo, until applyRecords or applyChanges is reached, and appends their results
// to s.results. mu must be held.
func (s *Store) applySome(frames []byte, before lsn.Position, upTo uint64) (lsn.Position, []byte, error) {
	changes := s.state.ScheduleChanges()
	for len(frames) > 0 && before.LSN < upTo && len(s.results) < applyRecords &&
		s.state.ScheduleChanges()-changes < applyChanges {
		f, rest, err := wal.NextFrame(frames, before) // frames were verified when read, received or created
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
			if err := s.state.ReadError(); err != nil {
				return before, frames, fmt.Errorf("apply: record %v: %w", f.Pos, s.repair.IndexError(err))
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

func payloadChecksum(frame, payload []byte) txn.Checksum {
	if len(payload) < crc.MinReuseBytes {
		return txn.Checksum{}
	}
	return txn.Checksum{Known: true, Sum: wal.PayloadChecksum(frame)}
}

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

// Applied returns the position of the last applied record.
func (s *Store) Applied() lsn.Position {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.applied
}

// waitForRoom blocks while too many messages or schedule changes are in memory, a rewrite copies page.db, or a hold
// is at the applied position. It returns ErrInterrupted if stop is closed while it blocks, or the error of Usable.
func (s *Store) waitForRoom(stop <-chan struct{}) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.mustWait() {
		return s.Usable()
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
		if err := s.Usable(); err != nil {
			return err
		}
		select {
		case <-stop:
			return ErrInterrupted
		default:
		}
		s.pages.Wake()
		s.room.Wait()
	}
	return s.Usable()
}

// changesPart is a divisor: schedule changes that the next checkpoint will write may use 1/changesPart of tailLimit.
const changesPart = 2

// mustWait reports whether Apply must wait. The caller must hold mu.
func (s *Store) mustWait() bool {
	limit := s.tailLimit()
	return s.paused || s.holds.holdsAt(s.applied.LSN) || s.state.TailBytes() > limit ||
		int64(s.state.ScheduleChanges()) > limit/changesPart/pager.ScheduleChangeBytes
}

// awaitRoomLimit is the maximum duration of AwaitRoom.
const awaitRoomLimit = 10 * time.Second

// AwaitRoom waits until memory has space for a transaction of the given size. It waits at most 10 s, or until ctx
// ends. It is a best effort: it can return earlier without enough space.
func (s *Store) AwaitRoom(ctx context.Context, bytes int64) {
	ctx, cancel := context.WithTimeout(ctx, awaitRoomLimit)
	defer cancel()
	defer context.AfterFunc(ctx, s.wakeRoom)()
	s.mu.Lock()
	defer s.mu.Unlock()
	written, before, rest := s.written, s.state.TailBytes(), s.o.MemoryBudget/pager.RestPart
	for ctx.Err() == nil && s.Usable() == nil && s.tailLimit() == s.o.MemoryBudget/2 {
		tail := s.state.TailBytes()
		if tail <= rest || tail+bytes <= s.tailLimit() || s.written-written >= before-rest {
			return
		}
		s.pages.Wake()
		s.room.Wait()
	}
}

// tailLimit returns the maximum number of message bytes in memory: half of the memory budget. While the disk is full
// or the index is corrupt, it is the whole budget. A store that needs a snapshot has no limit.
func (s *Store) tailLimit() int64 {
	if s.repair.AwaitsSnapshot() {
		return math.MaxInt64
	}
	if s.pages.DiskFull() || s.repair.Index() != nil {
		return s.o.MemoryBudget
	}
	return s.o.MemoryBudget / 2
}
