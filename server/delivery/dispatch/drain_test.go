// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"bytes"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// drained drains a consumer. It returns the messages received until the drain completes, and the revoked credit.
func (f *fixture) drained(c *dispatch.Consumer, number uint64) (list []dispatch.Message, credit uint32) {
	f.t.Helper()
	c.Drain(number)
	for {
		e, err := c.Next(f.ctx)
		require.NoError(f.t, err)
		list = append(list, e.Messages...)
		if e.Drained != 0 {
			require.Equal(f.t, number, e.Drained)
			return list, e.DrainedCredit
		}
	}
}

// A drain completes when the available messages are delivered, and revokes the remaining credit.
func TestDrain(t *testing.T) {
	for name, prioritized := range map[string]bool{"plain": false, "prioritized": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, limits())
				f.queue.prioritized = prioritized
				if prioritized {
					f.prioritized(1, 9, 4)
				} else {
					f.queue.publish("a", "b", "c")
				}
				c := f.attach(5)
				list, credit := f.drained(c, 1)
				require.Len(t, list, 3)
				require.EqualValues(t, 2, credit)
				list, credit = f.drained(c, 2)
				require.Empty(t, list)
				require.Zero(t, credit)
				if prioritized {
					f.prioritized(2, 3)
				} else {
					f.queue.publish("d", "e")
				}
				synctest.Wait()
				list, _ = f.drained(c, 3)
				require.Empty(t, list, "there is no credit")
				require.NoError(t, c.AddCredit(1))
				list, credit = f.drained(c, 4)
				require.Len(t, list, 1, "the credit is used up")
				require.Zero(t, credit)
				require.NoError(t, c.AddCredit(10))
				list, credit = f.drained(c, 5)
				require.Len(t, list, 1)
				require.EqualValues(t, 9, credit)
			})
		})
	}
}

// A drain delivers all messages that match the filter of the consumer, even if they were deferred for other
// consumers before. It completes even if messages are published continuously.
func TestDrainReadsAll(t *testing.T) {
	for name, prioritized := range map[string]bool{"plain": false, "prioritized": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t, limits())
				f.queue.prioritized = prioritized
				var bodies []string
				others := 20_000
				if prioritized {
					others = 300 // memoryQueue reads prioritized messages one by one
				}
				for i := range others {
					bodies = append(bodies, "other"+strconv.Itoa(i))
				}
				for i := range 40 {
					bodies = append(bodies, "wanted"+strconv.Itoa(i))
				}
				if prioritized {
					for i := range bodies {
						bodies[i] = message(t, txn.Attributes{}, bodies[i])
					}
				}
				f.queue.publish(bodies...)
				has := func(text string) func(m *dispatch.Message) bool {
					return func(m *dispatch.Message) bool { return bytes.Contains(m.Record, []byte(text)) }
				}
				none := f.filtered(100, has("none"))
				list, credit := f.drained(none, 1)
				require.Empty(t, list)
				require.EqualValues(t, 100, credit)

				c := f.filtered(100, has("wanted"))
				var more func()
				more = func() { // publish during each read
					f.queue.publish(bodies[0])
					f.queue.set(func() { f.queue.onRead = more })
				}
				if !prioritized { // with priorities, it takes many reads to find one message
					f.queue.set(func() { f.queue.onRead = more })
				}
				list, credit = f.drained(c, 1)
				f.queue.set(func() { f.queue.onRead = nil })
				require.Len(t, list, 40)
				require.EqualValues(t, 60, credit)
			})
		})
	}
}

// If a consumer has reached its limit of messages in flight, its drain completes immediately.
func TestDrainAtTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limits()
		l.Outstanding = 2
		f := newFixture(t, l)
		f.queue.publish("a", "b", "c")
		c := f.attach(2)
		require.Len(t, f.take(c, 2), 2)
		require.NoError(t, c.AddCredit(1))
		list, credit := f.drained(c, 1)
		require.Empty(t, list)
		require.EqualValues(t, 1, credit)
	})
}

// A drain delivers the messages that a lost consumer releases before it completes.
func TestDrainIncludesMessagesOfLostConsumer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits())
		f.queue.publish("a")
		lost := f.attach(1)
		require.Len(t, f.take(lost, 1), 1)
		hold := make(chan struct{})
		f.queue.set(func() { f.queue.hold = hold })
		lost.Close()
		c := f.attach(1)
		c.Drain(1)
		synctest.Wait()
		close(hold)
		list, _ := f.drained(c, 1)
		require.Len(t, list, 1)
	})
}
