package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-mq/lockstep/store/page"
)

// holds are records at which Apply stops until somebody has taken a checkpoint there. Store.mu guards them.
type holds struct{ list []*hold }

type hold struct {
	at      uint64
	reached chan struct{} // closed when the record is applied and nothing after it
}

// limit gives how far may be applied: upTo, or the first record that is held.
func (h *holds) limit(upTo uint64) uint64 {
	for _, o := range h.list {
		upTo = min(upTo, o.at)
	}
	return upTo
}

// stand tells whether nothing is to be applied after a record.
func (h *holds) stand(applied uint64) bool {
	return slices.ContainsFunc(h.list, func(o *hold) bool { return o.at == applied })
}

// reach tells those who hold a record that it is applied.
func (h *holds) reach(applied uint64) {
	for _, o := range h.list {
		if o.at != applied {
			continue
		}
		select {
		case <-o.reached: // told before
		default:
			close(o.reached)
		}
	}
}

// DigestAt is Digest of the content as it is at exactly record at. It waits until that is applied, at most for
// patience, and holds applying there for as long as a checkpoint takes; it is a good idea to write one shortly before.
// ErrPast if more was applied already, context.DeadlineExceeded if the record does not come in time.
func (s *Store) DigestAt(ctx context.Context, at uint64, patience time.Duration) (Digest, error) {
	file, pin, err := s.pinAt(ctx, at, patience)
	if err != nil {
		return Digest{}, fmt.Errorf("digest at LSN %d: %w", at, err)
	}
	d, err := digestFile(ctx, file, pin, s.o.MemoryBudget/16, s.Pace(ctx, 0))
	if gone := s.stillUses(file); gone != nil {
		return Digest{}, gone
	}
	return d, err
}

// pinAt pins a checkpoint that stands at a record.
func (s *Store) pinAt(ctx context.Context, at uint64, patience time.Duration) (*page.File, *page.Pin, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	h, err := s.holdAt(at)
	if err != nil {
		return nil, nil, err
	}
	defer s.letGo(h)
	select {
	case <-h.reached:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	if _, err := s.Checkpoint(ctx); err != nil {
		return nil, nil, err
	}
	file, pin, err := s.pinFile()
	if err != nil {
		return nil, nil, err
	}
	if have := pin.Meta().Position.LSN; have != at {
		pin.Release()
		return nil, nil, fmt.Errorf("%w: the store was replaced by its peer's, it stands at %d", ErrSnapshotGone, have)
	}
	return file, pin, nil
}

func (s *Store) holdAt(at uint64) (*hold, error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.applied.LSN > at {
		return nil, fmt.Errorf("%w: LSN %d", ErrPast, s.applied.LSN)
	}
	h := &hold{at: at, reached: make(chan struct{})}
	s.holds.list = append(s.holds.list, h)
	s.holds.reach(s.applied.LSN)
	return h, nil
}

func (s *Store) letGo(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds.list = slices.DeleteFunc(s.holds.list, func(o *hold) bool { return o == h })
	s.room.Broadcast()
}
