// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"runtime"
	"sync"

	"github.com/lockstep-mq/lockstep/server/auth/admission"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Requests of limits.stream-in-flight-bytes or more are executed one at a time. Each such request waits until the
// messages of the previous one have left memory.

func (s *Service) isLarge(bytes int) bool { return bytes >= int(s.limits.Load().StreamInFlightBytes) }

// beginLarge waits until a large request may be executed and memory is available. The caller must call done after
// the request has been executed or canceled.
func (s *Service) beginLarge(ctx context.Context, bytes int) (done func(), err error) {
	over := admission.IncomingFromContext(ctx).Blocked()
	defer over()
	select {
	case s.large <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for other large requests: %w", ctx.Err())
	}
	s.awaitRoom(ctx, bytes)
	return sync.OnceFunc(func() { <-s.large }), nil
}

// commitInOrder calls Primary.Commit. It commits large transactions one at a time.
func (s *Service) commitInOrder(ctx context.Context, session *session.Session, payload []byte) (*txn.Result, error) {
	if s.isLarge(len(payload)) {
		done, err := s.beginLarge(ctx, len(payload))
		if err != nil {
			return nil, err
		}
		defer done()
		// The wait for the commit must not count against clients: their requests may be queued behind this request.
		defer admission.IncomingFromContext(ctx).Blocked()()
	}
	return session.Primary.Commit(ctx, payload)
}

// awaitRoom waits until the messages of earlier large requests have left memory. It then frees the memory of
// these requests.
func (s *Service) awaitRoom(ctx context.Context, bytes int) {
	over := admission.IncomingFromContext(ctx).Blocked()
	defer over()
	s.store.AwaitRoom(ctx, int64(bytes))
	runtime.GC()
	runtime.GC() // the second collection frees the receive buffers of gRPC
}
