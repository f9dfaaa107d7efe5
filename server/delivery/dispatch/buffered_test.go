// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store/txn"
)

var firstKey = dispatch.Key{Queue: 1, Sub: 1}

// waitInFlight waits until at least the given number of messages are in flight and the number is stable. It
// returns that number.
func (f *fixture) waitInFlight(least uint64) uint64 {
	f.t.Helper()
	var n uint64
	require.Eventually(f.t, func() bool {
		before := n
		n, _ = f.registry.Stats(firstKey)
		return n >= least && n == before
	}, 10*time.Second, 20*time.Millisecond)
	return n
}

// Consumers that do not read buffer at most BufferedBytes in total, plus 16 KiB each. A consumer that reads
// receives messages in the meantime, including the messages of consumers that have finished.
func TestOutboxesShareLimit(t *testing.T) { synctest.Test(t, testOutboxesShareLimit) }

func testOutboxesShareLimit(t *testing.T) {
	const consumers, size = 50, 1 << 10
	f := newFixture(t, dispatch.Limits{
		Consumers: 1000, Outstanding: 10_000, BatchBytes: 256 << 10, OutboxBytes: 1 << 20, BufferedBytes: 2 << 20,
	})
	body := string(make([]byte, size))
	for range 10_000 {
		f.queue.publish(body)
	}
	list := make([]*dispatch.Consumer, consumers)
	for i := range list {
		list[i] = f.attach(10_000)
		synctest.Wait() // each consumer fills its outbox before the next attaches, which needs most memory
	}
	held, _ := f.registry.Stats(firstKey)
	require.Less(t, held*size, uint64(2<<20+256<<10+consumers*(16+1)<<10), "%d messages", held)
	got := 0
	read := func(c *dispatch.Consumer) {
		event, err := c.Next(f.ctx)
		require.NoError(t, err)
		for _, m := range event.Messages {
			require.NoError(t, c.Settle(f.ctx, dispatch.Outcomes{Acks: one(m.Sequence)}))
		}
		got += len(event.Messages)
	}
	for got < 3000 {
		read(list[0])
	}
	for i := range list[1:] {
		list[1+i].Finish()
	}
	for got < 10_000 {
		read(list[0])
	}
}

// The messages of a lost consumer are read again in batches when the next consumer can accept them. Each message
// is redelivered once and in order.
func TestRedeliveriesAreReadInParts(t *testing.T) {
	for name, set := range map[string]func(q *memoryQueue){
		"plain":                  func(*memoryQueue) {},
		"priorities":             func(q *memoryQueue) { q.prioritized = true },
		"single active consumer": func(q *memoryQueue) { q.exclusive = true },
	} {
		simulated(t, name, func(t *testing.T) {
			const messages = 200
			f := newFixture(t, limits()) // a batch contains one message, and an outbox four
			set(f.queue)
			body := message(t, txn.Attributes{}, string(make([]byte, 1000)))
			for range messages {
				f.queue.publish(body)
			}
			lost := f.attach(messages)
			next := f.attach(0)
			f.take(lost, messages)
			lost.Close()
			require.Eventually(t, func() bool {
				f.queue.mu.Lock()
				defer f.queue.mu.Unlock()
				return f.queue.count[messages] > 0
			}, 10*time.Second, time.Millisecond)
			before := f.queue.readsSoFar()
			require.NoError(t, next.AddCredit(messages))
			f.waitInFlight(4)
			require.Less(t, f.queue.readsSoFar()-before, 20)

			for s := uint64(1); s <= messages; {
				event, err := next.Next(f.ctx)
				require.NoError(t, err)
				for _, m := range event.Messages {
					require.Equal(t, s, m.Sequence)
					require.Equal(t, uint32(1), m.DeliveryCount)
					require.NoError(t, next.Settle(f.ctx, dispatch.Outcomes{Acks: one(s)}))
					s++
				}
			}
			require.Eventually(t, func() bool { return f.queue.backlog() == 0 }, 10*time.Second, time.Millisecond)
		})
	}
}

// While the first message of a group waits to be read again, the next message of the group is not delivered.
func TestGroupsKeepOrderWhenReadInParts(t *testing.T) {
	synctest.Test(t, testGroupsKeepOrderWhenReadInParts)
}

func testGroupsKeepOrderWhenReadInParts(t *testing.T) {
	const groups = 50
	f := newFixture(t, limits())
	body := string(make([]byte, 1000))
	for i := range 2 * groups {
		f.queue.publish(message(t, txn.Attributes{Group: strconv.Itoa(i % groups)}, body))
	}
	lost := f.attach(2 * groups) // the second messages of the groups are read and wait
	next := f.attach(0)
	f.take(lost, groups)
	require.Eventually(t, func() bool { return f.queue.readsSoFar() >= 2*groups }, 10*time.Second, time.Millisecond)
	lost.Close()
	require.NoError(t, next.AddCredit(2*groups))
	acked := map[uint64]bool{}
	for len(acked) < 2*groups {
		event, err := next.Next(f.ctx)
		require.NoError(t, err)
		for _, m := range event.Messages {
			if m.Sequence > groups {
				require.True(t, acked[m.Sequence-groups], "%d was delivered before %d", m.Sequence, m.Sequence-groups)
			}
		}
		for _, m := range event.Messages {
			acked[m.Sequence] = true
			require.NoError(t, next.Settle(f.ctx, dispatch.Outcomes{Acks: one(m.Sequence)}))
		}
	}
}
