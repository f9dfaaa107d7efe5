// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"sync/atomic"
)

// Held is what the handler of a running stream needs to go on, beside what its method asks of every caller: a right on
// the queue that its request has named. It is safe for concurrent use.
type Held struct{ check atomic.Pointer[func() error] }

// Check tells why the stream may not go on; nil if it may.
func (h *Held) Check() error {
	if check := h.check.Load(); check != nil {
		return (*check)()
	}
	return nil
}

type heldKey struct{}

// WithHeld gives the context of a stream to its handler.
func WithHeld(ctx context.Context, h *Held) context.Context {
	return context.WithValue(ctx, heldKey{}, h)
}

// WhileMay has the stream of a context end when check fails, at once or after a change of the rules, even while the
// handler waits for a client that does not read. The check may be called from any goroutine.
func WhileMay(ctx context.Context, check func() error) error {
	if err := check(); err != nil {
		return err
	}
	if h, ok := ctx.Value(heldKey{}).(*Held); ok {
		h.check.Store(&check)
		return check() // the rules may have changed before it was stored
	}
	return nil
}
