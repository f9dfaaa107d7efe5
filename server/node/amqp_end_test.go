// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// TestAMQPAcceptAndClose: what was accepted before the connection was closed is acknowledged, so that the next
// connection gets the next message.
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

// TestAMQPSendAndClose: what was sent before the connection was closed is stored, although the client waits for no
// outcome.
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
		}, wire.AppendData(nil, []byte("x")))
	}
	p.write(wire.AppendFrame(b, 0, &wire.Close{}, nil))
	expect[*wire.Close](p)
	n.eventually("q", func(q *pb.Queue) bool { return q.GetMessages() == count })
}

// TestAMQPDrainWithSelector: a drain is answered when the messages that match were found, however many others there
// are.
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

// TestAMQPDeletedQueue: the queue of a sender stays deleted.
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

// TestAMQPManyInATransaction: a transaction may have more messages to a queue than one publish.
func TestAMQPManyInATransaction(t *testing.T) { simulated(t, testAMQPManyInATransaction) }

func testAMQPManyInATransaction(t *testing.T) {
	n := startAlone(t, withAMQP)
	n.createQueue("q")
	p := openAMQP(t, n)
	require.Nil(t, p.sender(0, &wire.Coordinator{}))
	require.Nil(t, p.sender(1, targetNode("")))
	p.raw(0, wire.AppendDeclare(nil, &wire.Declare{}), nil)
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
		}, wire.AppendData(wire.AppendProperties(nil, &wire.Properties{To: to}), []byte("x"))...)
		p.next++
		for i%batch == batch-1 {
			if f := expect[*wire.Flow](p); f.Handle.Set && f.Handle.Value == 1 {
				break
			}
		}
	}
	p.raw(0, wire.AppendDischarge(nil, &wire.Discharge{TxnID: declared.TxnID}), nil)
	require.Equal(t, wire.Accepted{}, p.outcome())
	for _, queue := range []string{"q", "new"} {
		n.eventually(queue, func(q *pb.Queue) bool { return q.GetMessages() == count/2 })
	}
}
