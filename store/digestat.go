// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// holds lists the LSNs at which Apply stops until the hold is released. Store.mu guards it.
type holds struct{ list []*hold }

type hold struct {
	at      uint64
	reached chan struct{} // closed when this record or a later record is applied
}

// limit returns the last LSN that may be applied, at most upTo. It ignores holds below the applied LSN.
func (h *holds) limit(applied, upTo uint64) uint64 {
	for _, o := range h.list {
		if o.at >= applied {
			upTo = min(upTo, o.at)
		}
	}
	return upTo
}

func (h *holds) holdsAt(applied uint64) bool {
	return slices.ContainsFunc(h.list, func(o *hold) bool { return o.at == applied })
}

func (h *holds) reach(applied uint64) {
	for _, o := range h.list {
		if o.at > applied {
			continue
		}
		select {
		case <-o.reached:
		default:
			close(o.reached)
		}
	}
}

// waitAt waits at most maxWait until the record with the given LSN is applied. No later record is applied until
// release is called, unless a snapshot is installed. waitAt returns ErrPast if later records are already applied,
// context.DeadlineExceeded after maxWait, and otherwise the error of ctx or of Usable.
func (s *Store) waitAt(ctx context.Context, at uint64, maxWait time.Duration) (release func(), err error) {
	h, err := s.holdAt(at)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	select {
	case <-h.reached:
		return func() { s.removeHold(h) }, nil
	case <-ctx.Done():
		s.removeHold(h)
		return nil, ctx.Err()
	}
}

func (s *Store) holdAt(at uint64) (*hold, error) {
	if err := s.Usable(); err != nil {
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

func (s *Store) removeHold(h *hold) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.holds.list = slices.DeleteFunc(s.holds.list, func(o *hold) bool { return o == h })
	s.room.Broadcast()
}
