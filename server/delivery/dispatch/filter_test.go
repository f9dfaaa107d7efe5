// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"bytes"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
)

// wanted matches records that begin with "yes".
func wanted(record []byte) bool { return bytes.HasPrefix(record, []byte("yes")) }

// mixed returns n bodies and the sequences of those that match. Every tenth body matches.
func mixed(n int) (bodies []string, matching []uint64) {
	for i := range n {
		body := fmt.Sprintf("no %d", i)
		if i%10 == 7 {
			body = fmt.Sprintf("yes %d", i)
			matching = append(matching, uint64(i)+1)
		}
		bodies = append(bodies, body)
	}
	return bodies, matching
}

// Only matching messages are delivered, in order. The other messages are acknowledged in few transactions, even
// if the consumer accepts one message at a time.
func TestSubscriptionFilter(t *testing.T) { synctest.Test(t, testSubscriptionFilter) }

func testSubscriptionFilter(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.matches = wanted
	bodies, matching := mixed(500)
	f.queue.publish(bodies...)
	c := f.attach(1)
	for i, sequence := range matching {
		require.Equal(t, sequence, f.take(c, 1)[0].Sequence)
		f.confirm(c, one(sequence), nil, uint64(i)+1)
		require.NoError(t, c.AddCredit(1))
	}
	require.Eventually(t, func() bool { return f.queue.backlog() == 0 }, 10*time.Second, time.Millisecond)
	f.queue.mu.Lock()
	require.LessOrEqual(t, f.queue.commits, len(matching)+20)
	f.queue.mu.Unlock()

	f.queue.publish("no", "no", "yes", "no")
	require.Equal(t, uint64(503), f.take(c, 1)[0].Sequence)
	require.Eventually(t, func() bool { return f.queue.backlog() == 1 }, 10*time.Second, time.Millisecond)
}

// When the last consumer leaves, messages that do not match are acknowledged. Matching messages remain.
func TestFilterWithoutConsumer(t *testing.T) { synctest.Test(t, testFilterWithoutConsumer) }

func testFilterWithoutConsumer(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.matches = wanted
	c := f.attach(1)
	f.queue.publish("no", "yes", "no")
	require.Equal(t, uint64(2), f.take(c, 1)[0].Sequence)
	c.Close()
	require.Eventually(t, func() bool { return f.queue.isAcked(1) && f.queue.isAcked(3) }, 10*time.Second,
		time.Millisecond)
	require.False(t, f.queue.isAcked(2))
	require.Eventually(t, func() bool {
		_, consumers := f.registry.Stats(dispatch.Key{Queue: 1, Sub: 1})
		return consumers == 0
	}, 10*time.Second, time.Millisecond)
	f.queue.publish("no")
	f.nothing(f.attach(0))
	require.False(t, f.queue.isAcked(4))
	require.Equal(t, uint32(1), f.take(f.attach(1), 1)[0].DeliveryCount)
}

// A nacked message that matches is redelivered.
func TestFilterAndNack(t *testing.T) { synctest.Test(t, testFilterAndNack) }

func testFilterAndNack(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.matches = wanted
	f.queue.publish("no", "yes", "no", "yes")
	c := f.attach(10)
	require.Equal(t, []uint64{2, 4}, sequences(f.take(c, 2)))
	again := f.confirm(c, nil, one(2), 1) // the message may arrive with the confirmation
	again = append(again, f.take(c, 1-len(again))...)
	require.Equal(t, []uint64{2}, sequences(again))
	f.confirm(c, []dispatch.Range{{First: 2, Last: 2}, {First: 4, Last: 4}}, nil, 2)
	require.Eventually(t, func() bool { return f.queue.backlog() == 0 }, 10*time.Second, time.Millisecond)
}

// Reads stop while commits are blocked.
func TestFilterStopsWhileCommitsAreBlocked(t *testing.T) {
	synctest.Test(t, testFilterStopsWhileCommitsAreBlocked)
}

func testFilterStopsWhileCommitsAreBlocked(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.matches = func([]byte) bool { return false }
	hold := make(chan struct{})
	f.queue.hold = hold
	bodies := make([]string, 3000)
	f.queue.publish(bodies...)
	f.nothing(f.attach(1))
	f.queue.mu.Lock()
	f.queue.hold = nil
	f.queue.mu.Unlock()
	close(hold)
	require.Eventually(t, func() bool { return f.queue.backlog() == 0 }, 10*time.Second, time.Millisecond)
}

// If the filter of a subscription cannot be compiled, consumers are rejected until the filter is valid.
func TestInvalidFilter(t *testing.T) { synctest.Test(t, testInvalidFilter) }

func testInvalidFilter(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.noFilter = io.ErrUnexpectedEOF
	_, err := f.registry.Attach(dispatch.Key{Queue: 1, Sub: 1}, "", nil)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	f.queue.noFilter = nil
	f.attach(1)
}
