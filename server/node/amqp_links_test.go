// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// A browser does not return messages that another connection has acknowledged before, even if that connection has
// not received a response. The test uses real sockets, because the kernel reports which data has arrived on a
// connection.
func TestAMQPBrowseAfterAcknowledge(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the system does not report the received bytes of a connection")
	}
	n := startAlone(t, withAMQP)
	n.createQueue("q")
	p, b := openAMQP(t, n), openAMQP(t, n)
	require.Nil(t, p.receiver(0, "r", &wire.Source{Address: "q"}))
	p.credit(0, 1000)
	for i := range 100 {
		n.publish("q", "x")
		p.dispose(p.receive().id, wire.Accepted{})
		require.Nil(t, b.receiver(0, "b", &wire.Source{Address: "q", DistributionMode: "copy"}))
		b.send(&wire.Flow{
			NextIncomingID: wire.Some(uint32(0)), IncomingWindow: 1 << 20, OutgoingWindow: 1 << 20,
			Handle: wire.Some(uint32(0)), DeliveryCount: wire.Some(uint32(0)), LinkCredit: wire.Some(uint32(5)), Drain: true,
		})
		expect[*wire.Flow](b)
		require.Empty(t, b.kept, "at message %d", i)
		b.send(&wire.Detach{Handle: 0, Closed: true})
		expect[*wire.Detach](b)
	}
}

// A durable subscription belongs to the link that was attached last, on any connection of its container.
// Unacknowledged messages are redelivered to that link.
func TestAMQPLinkStolen(t *testing.T) { simulated(t, testAMQPLinkStolen) }

func testAMQPLinkStolen(t *testing.T) {
	n := startAlone(t, withAMQP)
	durable := func() *wire.Source {
		return &wire.Source{
			Address: "news", Capabilities: []wire.Symbol{"topic"}, Durable: wire.DurabilityUnsettled,
			ExpiryPolicy: wire.ExpiryNever,
		}
	}
	linkStolen := func(p *amqpPeer) {
		t.Helper()
		d := expect[*wire.Detach](p)
		require.NotNil(t, d.Error)
		require.Equal(t, wire.Symbol("amqp:link:stolen"), d.Error.Condition)
		require.True(t, d.Closed)
		p.send(&wire.Detach{Handle: 0, Closed: true})
	}
	p := openAMQP(t, n)
	require.Nil(t, p.receiver(0, "audit", durable()))
	n.publish("news", "one")
	p.credit(0, 10)
	require.Equal(t, "one", p.receive().body)

	q := openAMQP(t, n)
	require.Nil(t, q.receiver(0, "audit", durable()))
	linkStolen(p)
	q.credit(0, 10)
	m := q.receive()
	require.Equal(t, "one", m.body, "it was not settled")
	q.dispose(m.id, wire.Accepted{})
	n.publish("news", "two")
	require.Equal(t, "two", q.receive().body)

	q.send(&wire.Attach{
		Name: "audit", Handle: 1, Role: wire.RoleReceiver, Source: durable(),
		Target: &wire.Node{ExpiryPolicy: wire.ExpirySessionEnd},
	})
	linkStolen(q)
	q.credit(1, 10)
	require.Equal(t, "two", q.receive().body)
	n.eventually("news", func(q *pb.Queue) bool { return len(q.GetSubscriptions()) == 1 && q.GetMessages() == 1 })
}

// A link to a queue keeps its messages if another connection of the container attaches a link with the same name.
// Proton derives the names of links from the container and the address.
func TestAMQPSameNameOnAQueue(t *testing.T) { simulated(t, testAMQPSameNameOnAQueue) }

func testAMQPSameNameOnAQueue(t *testing.T) {
	n := startAlone(t, withAMQP)
	n.createQueue("q")
	n.publish("q", "one", "two")
	peers := []*amqpPeer{openAMQP(t, n), openAMQP(t, n)}
	for _, p := range peers {
		require.Nil(t, p.receiver(0, "client-q", &wire.Source{Address: "q"}))
	}
	for _, p := range peers {
		p.credit(0, 1)
		p.dispose(p.receive().id, wire.Accepted{})
	}
	n.eventually("q", isEmpty)
}
