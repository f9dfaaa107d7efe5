// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/throttle"
)

// ReadOptions select the checkpoint that ReadCheckpoint reads.
type ReadOptions struct {
	// At is the last record that the checkpoint must contain; 0 selects the currently applied one.
	At uint64
	// MaxWait bounds the wait for record At and the checkpoint there.
	MaxWait time.Duration
	// OlderIfFull reads the last existing checkpoint if the disk is too full for another one: the operation may be
	// the one that frees space.
	OlderIfFull bool
}

// ReadCheckpoint writes a checkpoint and calls fn with it. It works online: no transaction waits for fn. With
// ReadOptions.At it waits until that record is applied, and blocks applying at that record while the checkpoint is
// written. Writing another checkpoint shortly before shortens this.
//
// It returns the error of fn. ErrSnapshotGone means that page.db was replaced in the meantime, so that the data read
// by fn is invalid. ErrPast means that records after At were already applied, and context.DeadlineExceeded that At
// did not arrive in time.
func (s *Store) ReadCheckpoint(ctx context.Context, o ReadOptions, fn func(*checkpoint.Checkpoint) error) error {
	file, pin, err := s.pinAt(ctx, o)
	if err != nil {
		return err
	}
	c := checkpoint.Open(file, pin, checkpoint.Options{CacheBytes: s.o.MemoryBudget / 16, Pace: s.Pace(ctx, 0)})
	defer c.Close()
	err = fn(c)
	if gone := s.stillUses(file); gone != nil {
		return gone // fn's error is only that the file was closed during the read
	}
	return err
}

func (s *Store) pinAt(ctx context.Context, o ReadOptions) (*page.File, *page.Pin, error) {
	if o.At != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.MaxWait)
		defer cancel()
		release, err := s.waitAt(ctx, o.At, o.MaxWait)
		if err != nil {
			return nil, nil, fmt.Errorf("checkpoint at LSN %d: %w", o.At, err)
		}
		defer release()
	}
	_, err := s.Checkpoint(ctx)
	if err != nil && (!o.OlderIfFull || !errors.Is(err, page.ErrFull) && !errors.Is(err, syscall.ENOSPC)) {
		return nil, nil, err
	}
	file, pin, err := s.pinFile()
	if err != nil {
		return nil, nil, err
	}
	if have := pin.Meta().Position.LSN; o.At != 0 && have != o.At {
		pin.Release()
		return nil, nil, fmt.Errorf("checkpoint at LSN %d: %w: the store was replaced by its peer's, it stands at %d",
			o.At, ErrSnapshotGone, have)
	}
	return file, pin, nil
}

// SetBackgroundPercent changes Options.BackgroundPercent for work that begins from now on.
func (s *Store) SetBackgroundPercent(percent int) { s.background.Store(int32(percent)) }

// Governor returns the governor that slows down all background work of this store while it delays commits. The caller
// reports the commit latency to it.
func (s *Store) Governor() *throttle.Governor { return s.governor }

// Pace returns the limits of background work for ctx. The percentage of time is the Governor's, at most
// Options.BackgroundPercent. A bytesPerSecond other than 0 bounds reads and writes. With throttle.FullSpeed only
// bytesPerSecond applies.
func (s *Store) Pace(ctx context.Context, bytesPerSecond int64) *throttle.Pacer {
	if throttle.IsFullSpeed(ctx) {
		return throttle.New(throttle.Limits{BytesPerSecond: bytesPerSecond})
	}
	return throttle.New(throttle.Limits{
		Percent: int(s.background.Load()), BytesPerSecond: bytesPerSecond, Governor: s.governor,
	})
}

// paceGoverned is Pace without Options.BackgroundPercent, for work with its own limit, or work that a caller waits
// for.
func (s *Store) paceGoverned(bytesPerSecond int64) *throttle.Pacer {
	return throttle.New(throttle.Limits{BytesPerSecond: bytesPerSecond, Governor: s.governor})
}

// pinFile pins the last durable checkpoint for a long operation. It does not block Close or Install: they close the
// file, and later reads fail. stillUses returns the reason.
func (s *Store) pinFile() (*page.File, *page.Pin, error) {
	s.ioMu.RLock()
	defer s.ioMu.RUnlock()
	if err := s.Usable(); err != nil {
		return nil, nil, err
	}
	return s.file, s.file.Pin(), nil
}

// stillUses returns an error if file was closed since pinFile, so that the data read from it is invalid. A file that
// a rewrite replaced stays open while it is pinned.
func (s *Store) stillUses(file *page.File) error {
	s.ioMu.RLock()
	defer s.ioMu.RUnlock()
	if s.closed.Load() {
		return ErrClosed
	}
	if s.file != file && errors.Is(file.ReadPages(1, nil), page.ErrClosed) {
		return fmt.Errorf("%w: page.db was replaced while it was read; try again", ErrSnapshotGone)
	}
	return nil
}
