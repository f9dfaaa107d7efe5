// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"sync/atomic"
)

// StreamCheck is a condition that the handler of a running stream sets in addition to the requirements of its method: a
// right on the requested queue. It is safe for concurrent use.
type StreamCheck struct{ check atomic.Pointer[func() error] }

// Check returns an error if the stream must end.
func (h *StreamCheck) Check() error {
	if check := h.check.Load(); check != nil {
		return (*check)()
	}
	return nil
}

type streamCheckKey struct{}

// WithStreamCheck returns a stream context with a StreamCheck for its handler.
func WithStreamCheck(ctx context.Context, h *StreamCheck) context.Context {
	return context.WithValue(ctx, streamCheckKey{}, h)
}

// EndUnless ends the stream of a context when check fails, immediately or after a change of the rules, even while the
// handler waits for a slow client. check may be called from any goroutine.
func EndUnless(ctx context.Context, check func() error) error {
	if err := check(); err != nil {
		return err
	}
	if h, ok := ctx.Value(streamCheckKey{}).(*StreamCheck); ok {
		h.check.Store(&check)
		return check() // the rules may have changed before the check was stored
	}
	return nil
}
