// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/amqp/wiretest"
)

// Messages that a client accepts before it closes the connection are acknowledged. The next connection receives
// the message after them.
func TestAMQPAcceptAndClose(t *testing.T) { simulated(t, testAMQPAcceptAndClose) }

func testAMQPAcceptAndClose(t *testing.T) {
	n := startAlone(t, withAMQP)
	n.createQueue("q")
	const count = 30
	for i := range count {
		n.publish("q", fmt.Sprint(i))
	}
	for i := range count {
		p := openAMQP(t, n)
		require.Nil(t, p.receiver(0, "r", &wire.Source{Address: "q"}))
		p.credit(0, 1)
		m := p.receive()
		require.Equal(t, fmt.Sprint(i), m.body)
		b := wire.AppendFrame(nil, 0, &wire.Disposition{
			Role: wire.RoleReceiver, First: m.id, Last: m.id, Settled: true, State: wire.Accepted{},
		}, nil)
		p.write(wire.AppendFrame(b, 0, &wire.Close{}, nil))
		expect[*wire.Close](p)
	}
	n.eventually("q", isEmpty)
}

// Messages that a client sends before it closes the connection are stored, even if the client does not wait for
// their outcomes.
func TestAMQPSendAndClose(t *testing.T) { simulated(t, testAMQPSendAndClose) }

func testAMQPSendAndClose(t *testing.T) {
	n := startAlone(t, withAMQP)
	n.createQueue("q")
	p := openAMQP(t, n)
	require.Nil(t, p.sender(0, targetNode("q")))
	expect[*wire.Flow](p)
	const count = 600
	var b []byte
	for i := range uint32(count) {
		b = wire.AppendFrame(b, 0, &wire.Transfer{
			DeliveryID: wire.Some(i), DeliveryTag: []byte{byte(i >> 8), byte(i)}, MessageFormat: wire.Some(uint32(0)),
			Settled: wire.Some(true),
		}, wiretest.AppendData(nil, []byte("x")))
	}
	p.write(wire.AppendFrame(b, 0, &wire.Close{}, nil))
	expect[*wire.Close](p)
	n.eventually("q", func(q *pb.Queue) bool { return q.GetMessages() == count })
}

// A drain ends when all matching messages were delivered, regardless of the number of messages that do not match.
func TestAMQPDrainWithSelector(t *testing.T) { simulated(t, testAMQPDrainWithSelector) }

func testAMQPDrainWithSelector(t *testing.T) {
	n := startAlone(t, withAMQP)
	n.createQueue("q")
	const others, wanted = 20_000, 40
	var list []*pb.Message
	for i := range others + wanted {
		kind := "other"
		if i >= others {
			kind = "wanted"
		}
		list = append(list, &pb.Message{Body: []byte(fmt.Sprint(i)), Properties: map[string]string{"kind": kind}})
	}
	for len(list) > 0 {
		part := min(len(list), 5000)
		_, err := n.queues.Publish(t.Context(), &pb.PublishRequest{Queue: "q", Messages: list[:part]})
		require.NoError(t, err)
		list = list[part:]
	}
	p := openAMQP(t, n)
	require.Nil(t, p.receiver(0, "r", &wire.Source{Address: "q", Filter: wire.Map{{
		Key: wire.Symbol("s"), Value: wire.Described{
			Descriptor: wire.Symbol("apache.org:selector-filter:string"), Value: "kind = 'wanted'",
		},
	}}}))
	p.send(&wire.Flow{
		NextIncomingID: wire.Some(uint32(0)), IncomingWindow: 1 << 20, OutgoingWindow: 1 << 20,
		Handle: wire.Some(uint32(0)), DeliveryCount: wire.Some(uint32(0)), LinkCredit: wire.Some(uint32(100)), Drain: true,
	})
	f := expect[*wire.Flow](p)
	require.EqualValues(t, 100, f.DeliveryCount.Value)
	require.Zero(t, f.LinkCredit.Value)
	require.Len(t, p.kept, wanted)
}

// A sender does not create its queue again after the queue was deleted.
func TestAMQPDeletedQueue(t *testing.T) { simulated(t, testAMQPDeletedQueue) }

func testAMQPDeletedQueue(t *testing.T) {
	n := startAlone(t, withAMQP)
	p := openAMQP(t, n)
	require.Nil(t, p.sender(0, targetNode("q")))
	p.transfer(0, "x", nil)
	require.Equal(t, wire.Accepted{}, p.outcome())
	_, err := n.queues.DeleteQueue(t.Context(), &pb.DeleteQueueRequest{Name: "q"})
	require.NoError(t, err)
	p.transfer(0, "y", nil)
	d := expect[*wire.Detach](p)
	require.Equal(t, wire.Symbol("amqp:resource-deleted"), d.Error.Condition)
	_, err = n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "q"})
	require.Error(t, err)
}

// A transaction may contain more messages to one queue than a single publish.
func TestAMQPLargeTransaction(t *testing.T) { simulated(t, testAMQPLargeTransaction) }

func testAMQPLargeTransaction(t *testing.T) {
	n := startAlone(t, withAMQP)
	n.createQueue("q")
	p := openAMQP(t, n)
	require.Nil(t, p.sender(0, &wire.Coordinator{}))
	require.Nil(t, p.sender(1, targetNode("")))
	p.raw(0, wiretest.Declare(), nil)
	declared, ok := p.outcome().(*wire.Declared)
	require.True(t, ok)
	state := &wire.TransactionalState{TxnID: declared.TxnID}
	const count, batch = 12_000, 1000
	for i := range count {
		to := "q"
		if i%2 == 1 {
			to = "new"
		}
		p.send(&wire.Transfer{
			Handle: 1, DeliveryID: wire.Some(p.next), DeliveryTag: []byte{1}, MessageFormat: wire.Some(uint32(0)),
			Settled: wire.Some(true), State: state,
		}, wiretest.AppendData(wiretest.AppendTo(nil, to), []byte("x"))...)
		p.next++
		for i%batch == batch-1 {
			if f := expect[*wire.Flow](p); f.Handle.Set && f.Handle.Value == 1 {
				break
			}
		}
	}
	p.raw(0, wiretest.Discharge(declared.TxnID, false), nil)
	require.Equal(t, wire.Accepted{}, p.outcome())
	for _, queue := range []string{"q", "new"} {
		n.eventually(queue, func(q *pb.Queue) bool { return q.GetMessages() == count/2 })
	}
}

// Unsettled messages of a detached link, an ended session or a closed connection do not count as delivered. After an
// error or the loss of the connection, they count as delivered.
func TestAMQPDeliveryCountOfEndedLinks(t *testing.T) { simulated(t, testAMQPDeliveryCountOfEndedLinks) }

func testAMQPDeliveryCountOfEndedLinks(t *testing.T) {
	n := startAlone(t, withAMQP)
	const count = 100
	for name, c := range map[string]struct {
		end  func(p *amqpPeer)
		dead int
	}{
		"detach": {func(p *amqpPeer) {
			p.send(&wire.Detach{Handle: 0, Closed: true})
			expect[*wire.Detach](p)
		}, 0},
		"end": {func(p *amqpPeer) {
			p.send(&wire.End{})
			expect[*wire.End](p)
		}, 0},
		"close": {func(p *amqpPeer) {
			p.send(&wire.Close{})
			expect[*wire.Close](p)
		}, 0},
		"error": {func(p *amqpPeer) {
			p.send(&wire.Detach{Handle: 0, Closed: true, Error: &wire.Error{Condition: "amqp:decode-error"}})
			expect[*wire.Detach](p)
		}, count - 3},
		"broken-connection": {func(p *amqpPeer) { require.NoError(p.t, p.conn.Close()) }, count - 3},
	} {
		section(t, name, func(t *testing.T) {
			dead, queue := "dead-"+name, "orders-"+name
			require.NoError(t, n.createWith(dead, &pb.QueueConfig{}))
			require.NoError(t, n.createWith(queue, &pb.QueueConfig{DeadLetter: dead, MaxDeliveries: 3}))
			n.publishMany(queue, count)
			for range 3 {
				p := openAMQP(t, n)
				require.Nil(t, p.receiver(0, "r", &wire.Source{Address: queue}))
				p.credit(0, 2*count)
				got := p.receive()
				for range len(n.browse(queue)) - 1 {
					p.receive()
				}
				p.dispose(got.id, wire.Accepted{})
				c.end(p)
				n.eventually(queue, func(q *pb.Queue) bool { return q.GetSubscriptions()[0].GetConsumers() == 0 })
			}
			n.waitMessages(dead, c.dead)
			n.waitMessages(queue, count-3-c.dead)
		})
	}
}

// A reject that waits for space in the dead-letter queue is settled when the message is moved. Later outcomes are
// settled before that.
func TestAMQPPendingRejects(t *testing.T) { simulated(t, testAMQPPendingRejects) }

func testAMQPPendingRejects(t *testing.T) {
	n := startAlone(t, withAMQP)
	n.newQueues(&pb.QueueConfig{MaxMessages: 1}, &pb.QueueConfig{})
	n.publish("dead", "full")
	n.publishMany("orders", 5)
	p := openAMQP(t, n)
	require.Nil(t, p.receiver(0, "r", &wire.Source{Address: "orders"}))
	p.credit(0, 5)
	dispose := func(state wire.DeliveryState, first, last uint32) {
		p.send(&wire.Disposition{Role: wire.RoleReceiver, First: first, Last: last, State: state})
	}
	settled := func(first, last uint32) {
		t.Helper()
		d := expect[*wire.Disposition](p)
		require.True(t, d.Settled)
		require.Equal(t, []uint32{first, last}, []uint32{d.First, d.Last})
	}
	for range 5 {
		p.receive()
	}
	dispose(&wire.Rejected{}, 0, 1)
	dispose(wire.Accepted{}, 2, 2)
	settled(2, 2)
	dispose(wire.Accepted{}, 3, 3)
	settled(3, 3)
	for id := range uint32(2) {
		_, err := n.queues.PurgeQueue(t.Context(), &pb.PurgeQueueRequest{Name: "dead"})
		require.NoError(t, err)
		settled(id, id)
	}
	dispose(&wire.Rejected{}, 4, 4) // still pending when the link is detached
	p.send(&wire.Detach{Handle: 0, Closed: true})
	expect[*wire.Detach](p)
	require.Equal(t, []string{"5"}, n.bodiesIn("orders"))
	_, err := n.queues.PurgeQueue(t.Context(), &pb.PurgeQueueRequest{Name: "dead"})
	require.NoError(t, err)
	n.waitMessages("orders", 0)
	require.Equal(t, []string{"5"}, n.bodiesIn("dead"))
}

// A transaction may acknowledge more messages than the maximum number of ranges in one operation.
func TestAMQPManyAcknowledgements(t *testing.T) { simulated(t, testAMQPManyAcknowledgements) }

func testAMQPManyAcknowledgements(t *testing.T) {
	n := startAlone(t, withAMQP)
	n.createQueue("q")
	const count, batch = 70_000, 1000
	for range count / (10 * batch) {
		n.publishMany("q", 10*batch)
	}
	p := openAMQP(t, n)
	require.Nil(t, p.sender(0, &wire.Coordinator{}))
	p.raw(0, wiretest.Declare(), nil)
	declared, ok := p.outcome().(*wire.Declared)
	require.True(t, ok)
	require.Nil(t, p.receiver(1, "r", &wire.Source{Address: "q"}))
	p.credit(1, count)
	accepted := &wire.TransactionalState{TxnID: declared.TxnID, Outcome: wire.Accepted{}}
	for i := range uint32(count) {
		p.receive()
		if (i+1)%batch == 0 {
			p.send(&wire.Disposition{Role: wire.RoleReceiver, First: i + 1 - batch, Last: i, Settled: true, State: accepted})
		}
	}
	p.raw(0, wiretest.Discharge(declared.TxnID, false), nil)
	require.Equal(t, wire.Accepted{}, p.outcome())
	n.eventually("q", isEmpty)
}
