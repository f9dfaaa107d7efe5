// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth/admission"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
)

// Browsers that do not read reserve at most the shared limit. When half of it is reserved, further browsers
// receive small batches. At the limit, they are rejected until another browser ends.
func TestBrowsersShareLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const pending = 256 << 20
		b := newBrowsing(pending)
		conns := []*admission.Conn{new(admission.Conn), new(admission.Conn)}
		var all []*browser
		var large int
		for {
			c := b.begin(conns[len(all)%2])
			bytes, err := c.reserve(t.Context())
			if err != nil {
				require.ErrorIs(t, err, apierror.ErrTooManyBrowsers)
				require.Contains(t, err.Error(), "limits.pending-bytes")
				c.end()
				break
			}
			if bytes == session.DeliveryBatchBytes {
				large++
			}
			all = append(all, c)
		}
		require.LessOrEqual(t, b.held.Load(), int64(pending/browseFraction))
		require.Greater(t, large, 5)
		require.Greater(t, len(all), 100)

		waiting := b.begin(nil)
		got := make(chan error, 1)
		go func() {
			_, err := waiting.reserve(context.Background())
			got <- err
		}()
		<-time.After(time.Second)
		all[0].end()
		require.NoError(t, <-got)
		waiting.end()
		for _, c := range all[1:] {
			c.end()
		}
		require.Zero(t, b.held.Load())
		require.Empty(t, b.conns)
	})
}

// The reservation for a batch is adjusted to the actual size of the batch.
func TestBrowserReservesActualSize(t *testing.T) {
	b := newBrowsing(0)
	c := b.begin(nil)
	_, err := c.reserve(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.fit(t.Context(), 1000))
	require.Equal(t, int64(3000), b.held.Load())
	require.NoError(t, c.fit(t.Context(), 64<<20))
	require.Equal(t, int64(minBrowseBytes/2), b.held.Load(), "a reservation is at most half of the limit")
	c.end()
	require.Zero(t, b.held.Load())
}
