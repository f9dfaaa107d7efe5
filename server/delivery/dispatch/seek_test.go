// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
)

// During a Seek, no message of the subscription is settled and no consumer can attach. The error that ends the
// consumers shows whether their earlier outcomes are valid. Later consumers start at the new position.
func TestSeek(t *testing.T) {
	key := dispatch.Key{Queue: 1, Sub: 1}
	for name, failed := range map[string]error{"moved": nil, "not moved": errors.New("refused")} {
		simulated(t, name, func(t *testing.T) {
			f := newFixture(t, limits())
			f.queue.publish("1", "2", "3", "4")
			c := f.attach(2)
			f.take(c, 2)
			f.confirm(c, span(1, 2), nil, 1)
			require.NoError(t, c.AddCredit(2))
			f.take(c, 2)
			err := f.registry.Seek(key, func() error {
				_, err := f.registry.Attach(key, "", nil)
				require.ErrorIs(t, err, dispatch.ErrClosed)
				require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: span(3, 4), Confirm: 2}))
				f.queue.mu.Lock()
				defer f.queue.mu.Unlock()
				if failed == nil {
					clear(f.queue.acked)
				}
				return failed
			})
			require.ErrorIs(t, err, failed)
			want := dispatch.ErrMoved
			if failed != nil {
				want = dispatch.ErrClosed
			}
			_, err = c.Next(f.ctx)
			require.ErrorIs(t, err, want)
			require.ErrorIs(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: span(3, 4)}), want)
			c.Close()
			c = f.attach(10)
			if failed == nil {
				require.Equal(t, []uint64{1, 2, 3, 4}, sequences(f.take(c, 4)), "from the new position")
			} else {
				require.Equal(t, []uint64{3, 4}, sequences(f.take(c, 2)), "the unsettled messages")
			}
		})
	}
	f := newFixture(t, limits())
	require.NoError(t, f.registry.Seek(key, func() error { return nil }), "without consumers")
	f.registry.Close(nil)
	require.ErrorIs(t, f.registry.Seek(key, func() error { t.Error("called"); return nil }), dispatch.ErrClosed)
}
