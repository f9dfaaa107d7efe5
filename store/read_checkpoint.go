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
	"github.com/lockstep-mq/lockstep/store/pager"
	"github.com/lockstep-mq/lockstep/store/throttle"
)

// ReadOptions selects the checkpoint that ReadCheckpoint reads.
type ReadOptions struct {
	// At is the LSN of the last record that the checkpoint contains; 0 selects the last applied record.
	At uint64
	// MaxWait limits the wait for At and for the checkpoint. It applies only if At is set.
	MaxWait time.Duration
	// OlderIfFull selects the last checkpoint if the disk is too full for a new one.
	OlderIfFull bool
}

// ReadCheckpoint writes a checkpoint and calls fn with it. No transaction waits for fn. If ReadOptions.At is set,
// ReadCheckpoint waits until that record is applied, and the store applies no later record while the checkpoint is
// written.
//
// Errors include those of Checkpoint and fn, ErrPast if records after At were already applied, and
// context.DeadlineExceeded if At was not applied in time. If a snapshot was installed in the meantime, the error is
// pager.ErrReplaced; the data that fn has read is then invalid.
func (s *Store) ReadCheckpoint(ctx context.Context, o ReadOptions, fn func(*checkpoint.Checkpoint) error) error {
	file, pin, err := s.pinAt(ctx, o)
	if err != nil {
		return err
	}
	c := checkpoint.Open(file, pin, checkpoint.Options{CacheBytes: s.o.MemoryBudget / 16, Pace: s.Pace(ctx, 0)})
	defer c.Close()
	err = fn(c)
	if gone := s.pages.StillUses(file); gone != nil {
		return gone // the file was closed, so the result of fn is invalid
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
	file, pin, err := s.pages.Pin()
	if err != nil {
		return nil, nil, err
	}
	if have := pin.Meta().Position.LSN; o.At != 0 && have != o.At {
		pin.Release()
		return nil, nil, fmt.Errorf("checkpoint at LSN %d: %w by the peer's: applied up to LSN %d",
			o.At, pager.ErrReplaced, have)
	}
	return file, pin, nil
}

// SetBackgroundPercent changes Options.BackgroundPercent for operations that begin after the call.
func (s *Store) SetBackgroundPercent(percent int) { s.background.Store(int32(percent)) }

// Governor returns the governor that slows down background work while that work delays commits.
func (s *Store) Governor() *throttle.Governor { return s.governor }

// Pace returns a pacer for background work. It limits the work to bytesPerSecond, unless this is 0, and to the
// percentage of time that the Governor and Options.BackgroundPercent allow. If ctx has throttle.FullSpeed, only
// bytesPerSecond applies.
func (s *Store) Pace(ctx context.Context, bytesPerSecond int64) *throttle.Pacer {
	limits := throttle.Limits{BytesPerSecond: bytesPerSecond}
	if !throttle.IsFullSpeed(ctx) {
		limits.Percent, limits.Governor = int(s.background.Load()), s.governor
	}
	return throttle.New(limits)
}

// Checkpoint makes all changes that are already applied durable in page.db. If ctx ends first, it returns the error
// of ctx, and the checkpoint may still be written. On a full disk it returns an error that wraps page.ErrFull or
// syscall.ENOSPC, and the store continues without the checkpoint. Other write errors usually make the store unusable
// (INV-7).
func (s *Store) Checkpoint(ctx context.Context) (pager.CheckpointInfo, error) {
	return s.pages.Checkpoint(ctx)
}

// PageMap returns the use of the pages of page.db by region (pager.Pager.PageMap). regions must be at least 1.
func (s *Store) PageMap(ctx context.Context, regions int) (pager.PageMap, error) {
	return s.pages.PageMap(ctx, regions, s.Pace(ctx, 0))
}
