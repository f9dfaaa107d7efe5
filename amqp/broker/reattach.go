// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"time"

	"google.golang.org/grpc/codes"
)

// maxAttachWait is the maximum time for which an attach waits for the directory, if no pair has named the owner of the
// queue.
const maxAttachWait = 3 * time.Second

// reattach waits, and reports whether another stream must be opened. After NOT_OWNER, it is opened at the owner; if the
// pair has no active node, at the same pair. The deliveries of the ended stream are withdrawn, because they are
// delivered again.
func (s *consumer) reattach(err error) bool {
	if s.c.fleet == nil || s.ctx.Err() != nil {
		return false
	}
	f := failed(err)
	wait, again := s.next(&f)
	if !again {
		return false
	}
	over := false
	s.c.locked(func() {
		if over = s.gone || s.c.ended; !over && s.queueID != 0 {
			s.reset()
			s.c.handleEvents()
			s.c.signal()
		}
	})
	if over || !rest(s.ctx, wait) {
		return false
	}
	s.c.locked(func() { over = s.gone || s.c.ended })
	return !over
}

// next determines the pair of the next stream, and the time to wait before it.
func (s *consumer) next(f *failure) (wait time.Duration, again bool) {
	if f.owner != nil {
		before := s.way.at.name
		wait, err := s.way.follow(s.c, f.owner)
		if err != nil {
			f.text += "; " + err.Error()
			return 0, false
		}
		if s.way.at.name != before {
			s.attachTo = 0
		}
		return wait, true
	}
	limit := callLimit
	switch {
	case f.reason == "DIRECTORY_UNAVAILABLE":
		if !s.way.moved() {
			limit = maxAttachWait
		}
	case s.way.at.own() || f.reason == "SUBSCRIPTION_MOVED" || f.code == codes.Canceled:
		return 0, false
	}
	wait = s.way.backoff()
	return wait, f.again() && (s.attached() || time.Since(s.way.since) < limit)
}

func (s *consumer) attached() (is bool) {
	s.c.locked(func() { is = s.queueID != 0 })
	return is
}

// reset discards the state of the ended stream. mu is held.
func (s *consumer) reset() {
	s.generation++
	s.asked += uint32(s.link.WithdrawAll(expiredState))
	s.granted, s.given, s.answers, s.alive = 0, 0, answers{}, false
	s.waiting, s.rejects = nil, nil
	s.confirmed, s.answers.confirm = s.confirms, s.confirms
	s.synced()
}

// resumed continues on a further stream. mu is held.
func (s *consumer) resumed() {
	s.grant()
	if s.drain != nil {
		s.requestDrain()
	}
	s.signal()
}
