// SPDX-License-Identifier: Apache-2.0

package dispatch_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
)

// The active consumer of an exclusive partition is determined by the IDs of the consumers. It changes only when the
// former active consumer has no message in flight, so that no two consumers process messages of a partition.
func TestDividedConsumers(t *testing.T) { synctest.Test(t, testDividedConsumers) }

func testDividedConsumers(t *testing.T) {
	f := newFixture(t, limits())
	f.queue.exclusive = true
	f.queue.publish("1", "2", "3", "4")
	plain := f.attach(2)
	plain.Divide(0, "")
	require.Equal(t, []uint64{1, 2}, sequences(f.take(plain, 2)))
	x := f.attach(2)
	x.Divide(0, "x")
	f.nothing(x)
	require.NoError(t, plain.Settle(f.ctx, dispatch.Outcomes{Acks: one(1)}))
	require.NoError(t, plain.AddCredit(10))
	f.nothing(plain)
	f.nothing(x)
	require.NoError(t, plain.Settle(f.ctx, dispatch.Outcomes{Nacks: one(2)}))
	require.Equal(t, []uint64{2, 3}, sequences(f.take(x, 2)), "a consumer with an ID precedes one without")
	f.nothing(plain)
	x.Close()
	require.Equal(t, []uint64{2, 3, 4}, sequences(f.take(plain, 3)))
}

// The next active consumer receives a message that the former one has nacked before newer messages, also if the nack is
// being committed when it attaches.
func TestNackBeforeSuccessor(t *testing.T) {
	for _, attached := range []bool{true, false} {
		t.Run(fmt.Sprintf("attached before the nack: %t", attached), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testNackBeforeSuccessor(t, attached) })
		})
	}
}

func testNackBeforeSuccessor(t *testing.T, attached bool) {
	f := newFixture(t, limits())
	f.queue.exclusive = true
	f.queue.publish("1", "2", "3")
	plain := f.attach(1)
	plain.Divide(0, "")
	require.Equal(t, []uint64{1}, sequences(f.take(plain, 1)))
	hold := make(chan struct{})
	f.queue.set(func() { f.queue.hold = hold })
	nack := func() {
		require.NoError(t, plain.Settle(f.ctx, dispatch.Outcomes{Nacks: one(1)}))
		synctest.Wait()
	}
	if !attached {
		nack()
	}
	x := f.attach(3)
	x.Divide(0, "x")
	if attached {
		nack()
	}
	f.nothing(x)
	close(hold)
	require.Equal(t, []uint64{1, 2, 3}, sequences(f.take(x, 3)))
}

// Consumers with the same IDs divide the partitions evenly, in any order of their attachment.
func TestDivision(t *testing.T) { synctest.Test(t, testDivision) }

func testDivision(t *testing.T) {
	const partitions = 8
	ids := []string{"a", "b", "c", "d", "e"}
	for n := 1; n <= len(ids); n++ {
		counts := map[string]int{}
		for index := range partitions {
			f := newFixture(t, limits())
			f.queue.exclusive = true
			consumers := map[string]*dispatch.Consumer{}
			for i := range n {
				id := ids[(i+index)%n]
				consumers[id] = f.attach(1)
				consumers[id].Divide(index, id)
			}
			f.queue.publish("1", "2")
			synctest.Wait()
			active := 0
			for id, c := range consumers {
				_, unacknowledged := c.Load()
				active += int(unacknowledged)
				counts[id] += int(unacknowledged)
			}
			require.Equal(t, 1, active, "a partition has one active consumer")
		}
		for _, id := range ids[:n] {
			require.GreaterOrEqual(t, counts[id], partitions/n, id)
			require.LessOrEqual(t, counts[id], (partitions+n-1)/n, id)
		}
	}
}
