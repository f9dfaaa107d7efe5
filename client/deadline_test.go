// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func sequence(n uint64) []*pb.SequenceRange { return []*pb.SequenceRange{{First: n, Last: n}} }

func requireDeadlineError(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, client.ErrRefused)
	var known *client.Error
	require.ErrorAs(t, err, &known)
	require.Equal(t, "ACK_DEADLINE_EXPIRED", known.Reason)
}

// An expired message is removed from the buffer, and the consumer requests another one. The application cannot
// answer a message that expired after it was received. A refused ack is reported by AckSync and once by Flush.
func TestExpiredDelivery(t *testing.T) { synctest.Test(t, testExpiredDelivery) }

func testExpiredDelivery(t *testing.T) {
	p := newFakePair(t)
	p.responses = make(chan *pb.ConsumeResponse)
	c := p.client(client.Options{})
	fill(t, c, 4)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{Prefetch: 100, AckTimeout: time.Minute})
	require.NoError(t, err)
	require.Equal(t, time.Minute, co.AckTimeout())
	first, err := co.Receive(soon(t))
	require.NoError(t, err)
	require.NoError(t, first.Extend(soon(t)))
	p.responses <- &pb.ConsumeResponse{Expired: []*pb.SequenceRange{{First: 1, Last: 2}}}
	synctest.Wait()
	requireDeadlineError(t, first.Ack())
	requireDeadlineError(t, first.Extend(soon(t)))
	third, err := co.Receive(soon(t))
	require.NoError(t, err)
	require.EqualValues(t, 3, third.Sequence)
	p.mu.Lock()
	extended, last := p.extended, p.lastRequest
	p.mu.Unlock()
	require.Equal(t, []uint64{1}, extended)
	require.EqualValues(t, 1, last.GetCredit(), "of the expired message in the buffer")

	p.mu.Lock()
	p.late = sequence(3)
	p.mu.Unlock()
	require.NoError(t, third.Ack())
	synctest.Wait()
	requireDeadlineError(t, third.AckSync(soon(t)))
	requireDeadlineError(t, co.Flush(soon(t)))
	require.NoError(t, co.Flush(soon(t)))
}

// A refused ack is not sent again on the next stream. A node would accept it there.
func TestRefusedAckIsNotResent(t *testing.T) { synctest.Test(t, testRefusedAckIsNotResent) }

func testRefusedAckIsNotResent(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	fill(t, c, 3)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{AckTimeout: time.Minute})
	require.NoError(t, err)
	p.mu.Lock()
	p.late, p.endLate = sequence(2), true
	p.mu.Unlock()
	var list []*client.Delivery
	for range 3 {
		d, err := co.Receive(soon(t))
		require.NoError(t, err)
		list = append(list, d)
	}
	for _, d := range list {
		require.NoError(t, d.Ack())
	}
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.endLate = p.endLate && len(p.resent) == 0
		return !p.endLate
	}, time.Minute, time.Millisecond)
	requireDeadlineError(t, co.Flush(soon(t)))
	requireDeadlineError(t, list[1].AckSync(soon(t)))
	p.mu.Lock()
	defer p.mu.Unlock()
	require.NotEmpty(t, p.resent)
	for _, r := range p.resent {
		require.False(t, r.GetFirst() <= 2 && r.GetLast() >= 2, "%v", r)
	}
}

// Run extends the deadlines of all messages of the consumer, also after the ack timeout has changed.
func TestRunExtends(t *testing.T) { synctest.Test(t, testRunExtends) }

func testRunExtends(t *testing.T) {
	p := newFakePair(t)
	p.responses = make(chan *pb.ConsumeResponse)
	c := p.client(client.Options{})
	fill(t, c, 2)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- co.Run(ctx, func(ctx context.Context, _ *client.Delivery) error {
			select {
			case <-time.After(100 * time.Second):
			case <-ctx.Done():
			}
			return nil
		}, 1)
	}()
	extended := func() (list []uint64) {
		synctest.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		list, p.extended = p.extended, nil
		return list
	}
	pass(10 * time.Second)
	require.Empty(t, extended())
	for _, timeout := range []time.Duration{30 * time.Second, 3 * time.Second} {
		p.responses <- &pb.ConsumeResponse{AckTimeout: durationpb.New(timeout)}
		pass(timeout/3 + 1)
		require.Equal(t, []uint64{1, 2}, extended())
	}
	pass(100 * time.Second)
	extended()
	pass(time.Second + 1)
	require.Equal(t, []uint64{2}, extended())
	stop()
	require.NoError(t, <-ended)
	pass(time.Minute)
	require.Empty(t, extended())
}

// pass waits in simulated time.
func pass(d time.Duration) { <-time.After(d) }
