// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/pace"
	"github.com/lockstep-mq/lockstep/store/page"
)

// ReadOptions say which checkpoint ReadCheckpoint reads.
type ReadOptions struct {
	// At is the last record that the checkpoint is to hold; 0: whatever is applied now.
	At uint64
	// MaxWait bounds the wait for record At and the checkpoint there.
	MaxWait time.Duration
	// OlderIfFull reads the last checkpoint that there is when the disk is too full for another one: what is to be done
	// may be the way out.
	OlderIfFull bool
}

// ReadCheckpoint writes a checkpoint and calls fn with it. Online: no transaction waits for fn. With ReadOptions.At it
// waits until that record is applied, and holds applying there for as long as a checkpoint takes; it is a good idea to
// write one shortly before.
//
// It returns the error of fn. ErrSnapshotGone says that page.db was replaced meanwhile, so that what fn read means
// nothing; ErrPast that more than At was applied already; context.DeadlineExceeded that At did not come in time.
func (s *Store) ReadCheckpoint(ctx context.Context, o ReadOptions, fn func(*checkpoint.Checkpoint) error) error {
	file, pin, err := s.pinAt(ctx, o)
	if err != nil {
		return err
	}
	c := checkpoint.Open(file, pin, checkpoint.Options{CacheBytes: s.o.MemoryBudget / 16, Pace: s.Pace(ctx, 0)})
	defer c.Close()
	err = fn(c)
	if gone := s.stillUses(file); gone != nil {
		return gone // what fn reports is that the file was closed under it
	}
	return err
}

// pinAt writes and pins a checkpoint.
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

// Governor is what all work in the background of this store is slowed down by while it holds up commits. It is for who
// knows how long those take.
func (s *Store) Governor() *pace.Governor { return s.governor }

// Pace gives the limits of work in the background that ctx is for: its share of the time, which is what the Governor
// finds and Options.BackgroundPercent at most, and, if not 0, how many bytes per second it may read and write. With
// pace.FullSpeed it has the last of these only.
func (s *Store) Pace(ctx context.Context, bytesPerSecond int64) *pace.Pacer {
	if pace.IsFullSpeed(ctx) {
		return pace.New(pace.Limits{BytesPerSecond: bytesPerSecond})
	}
	return pace.New(pace.Limits{
		Percent: int(s.background.Load()), BytesPerSecond: bytesPerSecond, Governor: s.governor,
	})
}

// paceGoverned is Pace without Options.BackgroundPercent: for work that has a limit of its own, or that is waited for.
func (s *Store) paceGoverned(bytesPerSecond int64) *pace.Pacer {
	return pace.New(pace.Limits{BytesPerSecond: bytesPerSecond, Governor: s.governor})
}

// pinFile pins the last durable checkpoint for something that takes long. It keeps neither Close nor Install waiting:
// they close the file, reads of it fail from then on, and stillUses says why.
func (s *Store) pinFile() (*page.File, *page.Pin, error) {
	s.ioMu.RLock()
	defer s.ioMu.RUnlock()
	if err := s.usable(); err != nil {
		return nil, nil, err
	}
	return s.file, s.file.Pin(), nil
}

// stillUses returns an error if file was closed since pinFile, so that what was read of it means nothing. A file that a
// rewrite replaced stays open as long as it is pinned.
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
