// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func fill(t *testing.T, c *client.Client, n int) {
	ms := make([]client.Message, n)
	for i := range ms {
		ms[i] = message("%d", i+1)
	}
	_, err := c.PublishBatch(soon(t), "q", ms)
	require.NoError(t, err)
}

// A consumer receives all messages in order, and its acknowledgements are committed.
func TestConsume(t *testing.T) { synctest.Test(t, testConsume) }

func testConsume(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	fill(t, c, 1000)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{Prefetch: 10})
	require.NoError(t, err)
	for i := range 1000 {
		d, err := co.Receive(soon(t))
		require.NoError(t, err)
		require.Equal(t, uint64(i+1), d.Sequence)
		if i%100 == 0 {
			require.NoError(t, d.AckSync(soon(t)))
			require.GreaterOrEqual(t, p.ackedCount("q"), 1)
		} else {
			d.Ack()
		}
		d.Nack() // only the first answer counts
	}
	require.NoError(t, co.Flush(soon(t)))
	require.Equal(t, 1000, p.ackedCount("q"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = co.Receive(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, co.Close())
	_, err = co.Receive(soon(t))
	require.ErrorIs(t, err, client.ErrClosed)
}

// A nacked message is redelivered.
func TestConsumeNack(t *testing.T) { synctest.Test(t, testConsumeNack) }

func testConsumeNack(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	fill(t, c, 2)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{Prefetch: 1})
	require.NoError(t, err)
	d, err := co.Receive(soon(t))
	require.NoError(t, err)
	require.Equal(t, uint64(1), d.Sequence)
	d.Nack()
	require.NoError(t, co.Flush(soon(t)))
	seen := map[uint64]int{}
	for range 2 {
		d, err := co.Receive(soon(t))
		require.NoError(t, err)
		seen[d.Sequence]++
		d.Ack()
	}
	require.Equal(t, map[uint64]int{1: 1, 2: 1}, seen)
}

// After a failover, neither messages with an unconfirmed ack nor messages that the application holds are delivered
// again. All of them can be acknowledged on the new active.
func TestConsumerAfterFailover(t *testing.T) { synctest.Test(t, testConsumerAfterFailover) }

func testConsumerAfterFailover(t *testing.T) {
	const total = 500
	p := newFakePair(t)
	c := p.client(client.Options{})
	fill(t, c, total)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{Prefetch: 20})
	require.NoError(t, err)
	seen := map[uint64]int{}
	var late []*client.Delivery
	for i := range total {
		if i%50 == 25 {
			from := (i / 50) % 2
			p.setRole(from, pb.Role_ROLE_STANDBY)
			p.takeOver(1 - from)
		}
		d, err := co.Receive(soon(t))
		require.NoError(t, err)
		seen[d.Sequence]++
		if i%3 == 0 {
			late = append(late, d)
		} else {
			d.Ack()
		}
	}
	require.Len(t, seen, total)
	for _, d := range late {
		d.Ack()
	}
	require.NoError(t, co.Flush(soon(t)))
	require.Equal(t, total, p.ackedCount("q"))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = co.Receive(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded, "messages remain")
}

// Consume rejects a missing queue and an invalid prefetch.
func TestConsumeRejectsInvalidArguments(t *testing.T) {
	synctest.Test(t, testConsumeRejectsInvalidArguments)
}

func testConsumeRejectsInvalidArguments(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	_, err := c.Consume(soon(t), "missing", client.ConsumerOptions{})
	require.ErrorIs(t, err, client.ErrQueueNotFound)
	_, err = c.Consume(soon(t), "q", client.ConsumerOptions{Prefetch: 1 << 30})
	require.ErrorIs(t, err, client.ErrInvalid)
}

// The iterator ends when the consumer is closed.
func TestAllEndsOnClose(t *testing.T) { synctest.Test(t, testAllEndsOnClose) }

func testAllEndsOnClose(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	fill(t, c, 5)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	n := 0
	for d, err := range co.All(t.Context()) {
		require.NoError(t, err)
		d.Ack()
		if n++; n == 5 {
			require.NoError(t, co.Flush(soon(t)))
			go func() { _ = co.Close() }()
		}
	}
	require.Equal(t, 5, n)
	require.Equal(t, 5, p.ackedCount("q"))
}

// A transaction commits an acknowledgement and a publish.
func TestTxnAcksAndPublishes(t *testing.T) { synctest.Test(t, testTxnAcksAndPublishes) }

func testTxnAcksAndPublishes(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	fill(t, c, 3)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	for range 3 {
		d, err := co.Receive(soon(t))
		require.NoError(t, err)
		_, err = c.Begin().Ack(d).Publish("out", d.Message).Commit(soon(t))
		require.NoError(t, err)
		d.Ack() // already answered
	}
	require.NoError(t, co.Flush(soon(t)))
	require.Equal(t, 3, p.ackedCount("q"))
	require.Equal(t, []string{"1", "2", "3"}, p.bodies("out"))
}

// holdMany publishes total messages and receives all of them without answering.
func holdMany(t *testing.T, p *fakePair, total int) (co *client.Consumer, held []*client.Delivery) {
	t.Helper()
	c := p.client(client.Options{})
	for range total / 1000 {
		fill(t, c, 1000)
	}
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{Prefetch: total})
	require.NoError(t, err)
	for range total {
		d, err := co.Receive(soon(t))
		require.NoError(t, err)
		held = append(held, d)
	}
	return co, held
}

// Acks in random order that do not fit in one request are sent in several requests.
func TestManyAcks(t *testing.T) { synctest.Test(t, testManyAcks) }

func testManyAcks(t *testing.T) {
	const total = 12_000
	p := newFakePair(t)
	co, held := holdMany(t, p, total)
	for i := range held {
		held[(i*7919)%total].Ack()
	}
	require.NoError(t, co.Flush(soon(t)))
	require.Equal(t, total, p.ackedCount("q"))
}

// A consumer that reattaches, and a transaction that acknowledges, send the ID of the original queue, because
// another queue may have the same name.
func TestReattachAndAckSendQueueID(t *testing.T) { synctest.Test(t, testReattachAndAckSendQueueID) }

func testReattachAndAckSendQueueID(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	_, err := c.Publish(soon(t), "q", message("a"))
	require.NoError(t, err)
	consumer, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	d, err := consumer.Receive(soon(t))
	require.NoError(t, err)
	p.setRole(0, pb.Role_ROLE_STANDBY)
	p.takeOver(1)
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.queueIDs) >= 2 // an attempt to attach to the old node also counts
	}, 10*time.Second, time.Millisecond)
	_, err = c.Begin().Ack(d).Commit(soon(t))
	require.NoError(t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	require.GreaterOrEqual(t, len(p.queueIDs), 3)
	require.Equal(t, uint64(0), p.queueIDs[0])
	for _, id := range p.queueIDs[1:] {
		require.Equal(t, uint64(7), id)
	}
}

// An answer has no effect, and each call returns an error, if the consumer no longer holds the delivery.
func TestAnswerOfDeliveryNotHeld(t *testing.T) {
	simulated(t, "seek", testAnswerAfterSeek)
	simulated(t, "another delivery", testAnswerOfEarlierDelivery)
}

func requireNotHeld(t *testing.T, d *client.Delivery) {
	t.Helper()
	for range 2 {
		require.ErrorIs(t, d.Ack(), client.ErrInvalid)
		require.ErrorIs(t, d.AckSync(soon(t)), client.ErrInvalid)
		require.ErrorIs(t, d.Nack(), client.ErrInvalid)
		require.ErrorIs(t, d.NackAfter(time.Second), client.ErrInvalid)
		require.ErrorIs(t, d.Reject(), client.ErrInvalid)
		require.ErrorIs(t, d.Extend(soon(t)), client.ErrInvalid)
	}
}

func testAnswerAfterSeek(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	old := p.hold(t, c, co, "1", "2")
	p.mu.Lock()
	p.endConsume = func(r *pb.ConsumeRequest) error {
		if r.GetAttach() != nil {
			return nil
		}
		return refusal(t, codes.Unavailable, "SUBSCRIPTION_MOVED")
	}
	p.mu.Unlock()
	require.NoError(t, old[0].AckSync(soon(t)), "the seek replaces the answer")
	synctest.Wait()
	p.mu.Lock()
	p.endConsume = nil
	p.mu.Unlock()
	requireNotHeld(t, old[1])
	require.Zero(t, p.ackedCount("q"))
}

// The node redelivers the message on the same stream. An ack that is not yet confirmed answers both deliveries.
func testAnswerOfEarlierDelivery(t *testing.T) {
	p := newFakePair(t)
	p.responses = make(chan *pb.ConsumeResponse)
	c := p.client(client.Options{})
	fill(t, c, 1)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	first, err := co.Receive(soon(t))
	require.NoError(t, err)
	p.responses <- &pb.ConsumeResponse{Messages: []*pb.StoredMessage{{Sequence: first.Sequence, DeliveryCount: 1}}}
	second, err := co.Receive(soon(t))
	require.NoError(t, err)
	p.nodes[0].gate.freeze()
	require.NoError(t, second.Ack())
	require.ErrorIs(t, first.Nack(), client.ErrInvalid)
	require.ErrorIs(t, first.Reject(), client.ErrInvalid)
	require.NoError(t, first.Ack())
	p.nodes[0].gate.open()
	require.NoError(t, first.AckSync(soon(t)))
	require.Equal(t, 1, p.ackedCount("q"))
}
