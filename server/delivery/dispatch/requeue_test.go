// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
)

// hide excludes messages from delivery, like messages in a prepared transaction, or includes them again.
func (q *memoryQueue) hide(hidden bool, sequences ...uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range sequences {
		if hidden {
			q.acked[s] = true
		} else {
			delete(q.acked, s)
		}
	}
}

// Return delivers messages that were excluded from delivery exactly once, regardless of whether the read position
// has passed them.
func TestReturnDeliversOnce(t *testing.T) { synctest.Test(t, testReturnDeliversOnce) }

func testReturnDeliversOnce(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.publish("1", "2", "3", "4", "5")
	f.queue.hide(true, 2, 5)
	key := dispatch.Key{Queue: 1, Sub: 1}
	c := f.attach(10)
	require.Equal(t, []uint64{1, 3, 4}, sequences(f.take(c, 3)))
	both := []dispatch.Range{{First: 2, Last: 2}, {First: 5, Last: 5}}
	require.NoError(t, f.registry.Return(key, both, func() error {
		f.queue.hide(false, 2, 5)
		f.queue.publish("6") // triggers a read
		require.Equal(t, []uint64{6}, sequences(f.take(c, 1)), "no returned message is delivered before the callback returns")
		return nil
	}))
	require.Equal(t, []uint64{2, 5}, sequences(f.take(c, 2)))
	f.nothing(c)

	// If free returns an error, the message stays excluded.
	f.queue.publish("7")
	f.queue.hide(true, 7)
	broken := errors.New("broken")
	require.ErrorIs(t, f.registry.Return(key, one(7), func() error { return broken }), broken)
	f.nothing(c)
	require.NoError(t, f.registry.Return(key, nil, func() error { return nil }))
}

// A returned message is delivered once, even if the first consumer attaches during Return.
func TestReturnDuringFirstAttach(t *testing.T) { synctest.Test(t, testReturnDuringFirstAttach) }

func testReturnDuringFirstAttach(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.publish("1", "2")
	f.queue.hide(true, 1)
	var c *dispatch.Consumer
	require.NoError(t, f.registry.Return(dispatch.Key{Queue: 1, Sub: 1}, one(1), func() error {
		f.queue.hide(false, 1)
		c = f.attach(10)
		require.Equal(t, []uint64{2}, sequences(f.take(c, 1)))
		return nil
	}))
	require.Equal(t, []uint64{1}, sequences(f.take(c, 1)))
	f.nothing(c)
}

// Return delivers each message once, regardless of concurrent reads.
func TestReturnDuringReads(t *testing.T) { synctest.Test(t, testReturnDuringReads) }

func testReturnDuringReads(t *testing.T) {
	f := newFixture(t, limits())
	key := dispatch.Key{Queue: 1, Sub: 1}
	c := f.attach(1000)
	const n = 300
	var joined sync.WaitGroup
	for s := uint64(1); s <= n; s++ {
		f.queue.hide(true, s)
		f.queue.publish("x")
		joined.Go(func() {
			<-time.After(time.Duration(s%7) * 100 * time.Microsecond)
			_ = f.registry.Return(key, one(s), func() error {
				f.queue.hide(false, s)
				return nil
			})
		})
	}
	got := map[uint64]int{}
	for _, m := range f.take(c, n) {
		got[m.Sequence]++
	}
	joined.Wait()
	require.Len(t, got, n)
	f.nothing(c)
}
