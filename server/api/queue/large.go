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

// A request may be as large as memory.budget. While it is executed, memory contains two copies: the received one, and
// the log record until its messages are in pages. Therefore requests of limits.stream-in-flight-bytes or more are
// executed one at a time, after the messages of the previous one have left memory.

func (s *Service) isLarge(bytes int) bool { return bytes >= int(s.limits.Load().StreamInFlightBytes) }

// beginLarge waits until a very large request may be executed, and for memory. done must be called after the request
// was executed or cancelled.
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

// commitInOrder calls Primary.Commit. It commits very large transactions one at a time.
func (s *Service) commitInOrder(ctx context.Context, session *session.Session, payload []byte) (*txn.Result, error) {
	if s.isLarge(len(payload)) {
		done, err := s.beginLarge(ctx, len(payload))
		if err != nil {
			return nil, err
		}
		defer done()
		// Requests that wait for this request or for its response count as waiting for the node.
		defer admission.IncomingFromContext(ctx).Blocked()()
	}
	return session.Primary.Commit(ctx, payload)
}

// awaitRoom waits until the messages of earlier very large requests have left memory, and frees the memory of those
// requests.
func (s *Service) awaitRoom(ctx context.Context, bytes int) {
	over := admission.IncomingFromContext(ctx).Blocked()
	defer over()
	s.store.AwaitRoom(ctx, int64(bytes))
	runtime.GC()
	runtime.GC() // the second collection frees the receive buffers of gRPC
}
