// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

const (
	// rawCredit is the credit of each consumer, in messages.
	rawCredit = 256
	// On average, one in rawNack first deliveries is nacked. After one in rawDrop batches, on average, the stream is
	// closed before the batch is acknowledged.
	rawNack = 200
	rawDrop = 400
	// activeCheck is the interval at which a consumer checks that its node is still active. The check is required
	// because a suspended node does not end the stream.
	activeCheck = 50 * time.Millisecond
)

// rawConsumer consumes one subscription on the plain gRPC stream, because the client package hides redeliveries, which
// the checker must see.
type rawConsumer struct {
	w          *Workload
	queue, sub string
	rng        *rand.Rand
}

// run consumes on consecutive streams until ctx is done.
func (c *rawConsumer) run(ctx context.Context) {
	for ctx.Err() == nil {
		address, err := c.w.activeNode(ctx, c.queue)
		if err != nil {
			return
		}
		c.stream(ctx, address)
		// Wait, because the next attempt may find the same node.
		wait(ctx, pollInterval)
	}
}

// stream consumes from a node until the stream breaks, the node is no longer active, or a random decision ends it.
func (c *rawConsumer) stream(ctx context.Context, address string) {
	ctx, cancel := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		defer cancel()
		c.w.untilReplaced(ctx, address, c.queue)
	})
	defer watcher.Wait()
	defer cancel()
	stream, err := pb.NewQueueServiceClient(c.w.pair.ConnTo(address)).Consume(ctx)
	if err != nil {
		return
	}
	defer c.w.history.AddStream(c.queue, c.sub)()
	attach := &pb.ConsumeRequest{Attach: &pb.Attach{Queue: c.queue, Subscription: c.sub}, Credit: rawCredit}
	if stream.Send(attach) != nil {
		return
	}
	s := rawStream{c: c, number: c.w.streams.Add(1), unconfirmed: map[uint64][]uint64{}}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return
		}
		s.confirmed(resp.GetConfirmed())
		if len(resp.GetMessages()) == 0 {
			continue
		}
		answer, ok := s.receive(resp.GetMessages())
		if !ok {
			return
		}
		s.sent(answer)
		if stream.Send(answer) != nil {
			return
		}
	}
}

type rawStream struct {
	c           *rawConsumer
	number      uint64              // of the stream, in the history
	next        uint64              // number of the last requested confirmation
	unconfirmed map[uint64][]uint64 // sequences covered by each confirmation number
	seen        uint64              // highest confirmed number
}

// receive records deliveries, and returns the acknowledgements, occasionally with a nack. ok is false if the stream
// must be closed.
func (s *rawStream) receive(messages []*pb.StoredMessage) (answer *pb.ConsumeRequest, ok bool) {
	c := s.c
	answer = &pb.ConsumeRequest{Credit: uint32(len(messages))}
	drop := c.rng.IntN(rawDrop) == 0
	for _, m := range messages {
		c.w.delivered(historycheck.Delivery{
			Queue: c.queue, Sub: c.sub, Sequence: m.GetSequence(), Stream: s.number, Repeated: m.GetDeliveryCount() > 0,
		}, fromProto(m.GetMessage()))
		r := &pb.SequenceRange{First: m.GetSequence(), Last: m.GetSequence()}
		if m.GetDeliveryCount() == 0 && c.rng.IntN(rawNack) == 0 {
			answer.Nack = append(answer.Nack, r)
			continue
		}
		answer.Ack = append(answer.Ack, r)
		s.unconfirmed[s.next+1] = append(s.unconfirmed[s.next+1], m.GetSequence())
	}
	s.next++
	answer.Confirm = s.next
	return answer, !drop
}

func (s *rawStream) sent(answer *pb.ConsumeRequest) {
	for _, r := range answer.GetAck() {
		s.c.w.history.AddAckSent(historycheck.Ack{Queue: s.c.queue, Sub: s.c.sub, Sequence: r.GetFirst()})
	}
}

func (s *rawStream) confirmed(upTo uint64) {
	for ; s.seen < upTo; s.seen++ {
		for _, sequence := range s.unconfirmed[s.seen+1] {
			s.c.w.history.AddAck(historycheck.Ack{
				Queue: s.c.queue, Sub: s.c.sub, Sequence: sequence,
				Confirmed: s.c.w.history.Now(),
			})
		}
		delete(s.unconfirmed, s.seen+1)
	}
}

const (
	// clientBatch is the maximum number of messages that the consumer of the client package acknowledges together.
	clientBatch = 32
	// clientReopen is the average number of batches after which the consumer is reopened, so that the client's state does
	// not hide a redelivery.
	clientReopen = 50
)

// clientConsumer consumes one subscription through the client package.
type clientConsumer struct {
	w          *Workload
	queue, sub string
	rng        *rand.Rand
}

// run consumes with consecutive consumers until ctx is done.
func (c *clientConsumer) run(ctx context.Context) {
	for ctx.Err() == nil {
		consumer, err := c.w.client.Consume(ctx, c.queue,
			client.ConsumerOptions{Subscription: c.sub, Prefetch: rawCredit})
		if err != nil {
			wait(ctx, pollInterval)
			continue
		}
		number := c.w.streams.Add(1)
		for err == nil && c.rng.IntN(clientReopen) != 0 {
			err = c.batch(ctx, consumer, number)
		}
		_ = consumer.Close()
	}
}

// batch receives up to clientBatch messages, acknowledges or nacks each message, and waits until the acknowledgements
// are confirmed.
func (c *clientConsumer) batch(ctx context.Context, consumer *client.Consumer, number uint64) error {
	var acked []uint64
	rctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i := range clientBatch {
		d, err := consumer.Receive(rctx)
		if err != nil && i == 0 {
			return fmt.Errorf("receive: %w", err)
		} else if err != nil {
			break
		}
		if i == 0 {
			// After the first message, receive further messages only for 1 ms.
			time.AfterFunc(time.Millisecond, cancel)
		}
		c.w.delivered(historycheck.Delivery{
			Queue: c.queue, Sub: c.sub, Sequence: d.Sequence, Stream: number, Repeated: d.DeliveryCount > 0,
		}, d.Message)
		if d.DeliveryCount == 0 && c.rng.IntN(rawNack) == 0 {
			_ = d.Nack()
			continue
		}
		c.w.history.AddAckSent(historycheck.Ack{Queue: c.queue, Sub: c.sub, Sequence: d.Sequence})
		_ = d.Ack() // Flush reports the outcome
		acked = append(acked, d.Sequence)
	}
	if err := consumer.Flush(ctx); err != nil {
		return fmt.Errorf("acknowledge: %w", err)
	}
	for _, sequence := range acked {
		c.w.history.AddAck(historycheck.Ack{Queue: c.queue, Sub: c.sub, Sequence: sequence, Confirmed: c.w.history.Now()})
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
