// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/lockstep-mq/lockstep/server/admission"
	"github.com/lockstep-mq/lockstep/server/serving"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// A request of the largest size may be as large as memory.budget, and while it is carried out there are two copies of
// it: the one that was received, and the log record, which stays until its messages are in pages. So very large
// requests, those of limits.stream-in-flight-bytes or more, are carried out one after the other, each when the messages
// of the one before have left memory. None is refused for it: they wait, however large they are.

// isLarge tells whether a request of so many bytes takes turns.
func (s *Service) isLarge(bytes int) bool { return bytes >= int(s.limits.Load().StreamInFlightBytes) }

// beginLarge waits for the turn of a very large request, and for room in memory. done must be called when the request
// was carried out or given up. The error is the context's.
func (s *Service) beginLarge(ctx context.Context, bytes int) (done func(), err error) {
	over := admission.IncomingOf(ctx).Waits()
	defer over()
	select {
	case s.large <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for other very large requests: %w", ctx.Err())
	}
	s.awaitRoom(ctx, bytes)
	return sync.OnceFunc(func() { <-s.large }), nil
}

// commitInTurn is the primary's. A very large transaction takes its turn.
func (s *Service) commitInTurn(ctx context.Context, session *serving.Session, payload []byte) (*txn.Result, error) {
	if s.isLarge(len(payload)) {
		done, err := s.beginLarge(ctx, len(payload))
		if err != nil {
			return nil, err
		}
		defer done()
		// Those that wait for this one's turn to end, or for its answer, wait for the node.
		defer admission.IncomingOf(ctx).Waits()()
	}
	return session.Primary.Commit(ctx, payload)
}

// awaitRoom waits until the messages of earlier very large requests have left memory, and frees what those requests
// have left behind: as much as the next one takes.
func (s *Service) awaitRoom(ctx context.Context, bytes int) {
	over := admission.IncomingOf(ctx).Waits()
	defer over()
	s.store.AwaitRoom(ctx, int64(bytes))
	runtime.GC()
	runtime.GC() // the buffers that gRPC has received into are given up by the second one
}
