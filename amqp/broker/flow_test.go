// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"slices"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// numbered returns n bodies.
func numbered(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = strconv.Itoa(i)
	}
	return list
}

// A receiver with more credit than maxCredit receives messages for all of its credit.
func TestCreditAboveMaxCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const credit, count = 30_000, 25_000
		n := newStore().open()
		n.queues["q"] = numbered(count)
		s, _, stop := serveFor(t, n, inMemory)
		defer stop()
		p := dial(t, s, "c")
		p.attachReceiver(0, &wire.Source{Address: "q"}, &wire.Flow{LinkCredit: wire.Some(uint32(credit))})
		for i := range count {
			require.NotNil(t, next[*wire.Transfer](p), "message %d", i)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		require.LessOrEqual(t, slices.Max(n.credits), uint32(maxCredit))
	})
}

// A drain is answered only after the node has responded.
func TestDrainWaitsForNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStore()
		n.queues["q"] = numbered(3)
		s, _, stop := serveFor(t, n, inMemory)
		defer stop()
		p := dial(t, s, "c")
		p.attachReceiver(0, &wire.Source{Address: "q"}, &wire.Flow{LinkCredit: wire.Some(uint32(5)), Drain: true})
		for range 3 {
			require.NotNil(t, next[*wire.Transfer](p))
		}
		flows := make(chan *wire.Flow, 1)
		go func() { flows <- next[*wire.Flow](p) }()
		synctest.Wait()
		require.Empty(t, flows)
		close(n.hold)
		f := <-flows
		require.NotNil(t, f)
		require.EqualValues(t, 5, f.DeliveryCount.Value)
		require.Zero(t, f.LinkCredit.Value)

		n.mu.Lock()
		n.queues["q"] = numbered(4)
		n.mu.Unlock()
		p.flow(0, &wire.Flow{
			DeliveryCount: wire.Some(uint32(5)), LinkCredit: wire.Some(uint32(1)), Drain: true,
		})
		require.NotNil(t, next[*wire.Transfer](p))
	})
}

// A client at the limit of unsettled messages receives a response to a drain although more messages are available.
func TestDrainAtTheLimitOfUnsettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 65_536
		n := newStore().open()
		n.queues["q"] = numbered(limit + 30_000)
		s, _, stop := serveFor(t, n, inMemory)
		defer stop()
		p := dial(t, s, "c")
		p.attachReceiver(0, &wire.Source{Address: "q"}, &wire.Flow{LinkCredit: wire.Some(uint32(limit + 20_000))})
		var last uint32
		for i := range limit {
			d := next[*wire.Transfer](p)
			require.NotNil(t, d, "message %d", i)
			last = d.DeliveryID.Value
		}
		p.flow(0, &wire.Flow{
			DeliveryCount: wire.Some(uint32(limit)), LinkCredit: wire.Some(uint32(10)), Drain: true,
		})
		f := next[*wire.Flow](p)
		require.NotNil(t, f)
		require.Zero(t, f.LinkCredit.Value)
		require.EqualValues(t, limit+10, f.DeliveryCount.Value)

		p.write(wire.AppendFrame(nil, 0, &wire.Disposition{
			Role: wire.RoleReceiver, First: 0, Last: last, Settled: true, State: wire.Accepted{},
		}, nil))
		p.flow(0, &wire.Flow{DeliveryCount: wire.Some(uint32(limit + 10)), LinkCredit: wire.Some(uint32(10))})
		for range 10 {
			require.NotNil(t, next[*wire.Transfer](p), "it continues when messages are settled")
		}
	})
}
