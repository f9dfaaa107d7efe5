// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
)

func (f *fixture) pause(paused bool) {
	f.queue.mu.Lock()
	f.queue.paused = paused
	f.queue.mu.Unlock()
	f.registry.Altered(1)
}

// After Altered has returned, no message of a paused subscription is delivered, not even one that was assigned to
// a consumer before. Messages in flight can be settled. After the pause, the messages are delivered in order
// (INV-21).
func TestPausedSubscriptionDeliversNothing(t *testing.T) {
	for name, prioritized := range map[string]bool{"plain": false, "prioritized": true} {
		simulated(t, name, func(t *testing.T) {
			f := newFixture(t, limits())
			f.queue.prioritized = prioritized
			if prioritized {
				f.prioritized(4, 4, 4, 4)
			} else {
				f.queue.publish("a", "b", "c", "d")
			}
			c := f.attach(3)
			synctest.Wait() // three messages are assigned
			f.pause(true)
			f.nothing(c)
			credit, unacknowledged := c.Load()
			require.EqualValues(t, 3, credit)
			require.Zero(t, unacknowledged)

			f.pause(false)
			first := f.take(c, 3)
			require.EqualValues(t, 1, first[0].Sequence)
			f.pause(true)
			require.Empty(t, f.confirm(c, []dispatch.Range{{First: 1, Last: 2}}, []dispatch.Range{{First: 3, Last: 3}}, 1))
			require.NoError(t, c.AddCredit(5))
			if prioritized {
				f.prioritized(4)
			} else {
				f.queue.publish("e")
			}
			f.nothing(c)
			other := f.attach(1)
			f.nothing(other)
			other.Close()

			f.pause(false)
			rest := f.take(c, 3)
			require.Equal(t, []uint64{3, 4, 5}, []uint64{rest[0].Sequence, rest[1].Sequence, rest[2].Sequence})
			require.EqualValues(t, 1, rest[0].DeliveryCount)
		})
	}
}

// A drain of a paused subscription completes without messages.
func TestDrainOfPausedSubscription(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, limits())
		f.queue.publish("a", "b")
		c := f.attach(2)
		synctest.Wait()
		f.pause(true)
		list, credit := f.drained(c, 1)
		require.Empty(t, list)
		require.EqualValues(t, 2, credit)
		f.pause(false)
		f.nothing(c)
		require.NoError(t, c.AddCredit(2))
		f.take(c, 2)
	})
}
