// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func (n *fakeNode) AlterQueue(_ context.Context, r *pb.AlterQueueRequest) (*pb.AlterQueueResponse, error) {
	n.pair.mu.Lock()
	defer n.pair.mu.Unlock()
	if err := n.active(); err != nil {
		return nil, err
	}
	if err := n.pair.owns(r.GetName()); err != nil {
		return nil, err
	}
	n.pair.altered = append(n.pair.altered, r)
	return &pb.AlterQueueResponse{Queue: &pb.Queue{Name: r.GetName(), Config: r.GetConfig()}}, nil
}

func (n *fakeNode) ReplayDeadLetters(
	_ context.Context, r *pb.ReplayDeadLettersRequest,
) (*pb.ReplayDeadLettersResponse, error) {
	n.pair.mu.Lock()
	defer n.pair.mu.Unlock()
	if err := n.active(); err != nil {
		return nil, err
	}
	return n.pair.replay(r)
}

// A rejected message is neither redelivered nor acknowledged nor requeued; a nacked one is redelivered.
func TestReject(t *testing.T) { synctest.Test(t, testReject) }

func testReject(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	fill(t, c, 3)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	var got []*client.Delivery
	for range 3 {
		d, err := co.Receive(soon(t))
		require.NoError(t, err)
		got = append(got, d)
	}
	got[0].Ack()
	got[1].Reject()
	got[1].Ack() // only the first answer counts
	require.ErrorIs(t, got[1].AckSync(soon(t)), client.ErrInvalid)
	got[2].Nack()
	require.NoError(t, co.Flush(soon(t)))
	p.mu.Lock()
	require.Equal(t, []uint64{2}, p.rejected["q"])
	p.mu.Unlock()
	d, err := co.Receive(soon(t))
	require.NoError(t, err)
	require.Equal(t, uint64(3), d.Sequence)
}

// Rejects in random order that do not fit in one request are sent in several requests.
func TestManyRejects(t *testing.T) { synctest.Test(t, testManyRejects) }

func testManyRejects(t *testing.T) {
	const total = 12_000
	p := newFakePair(t)
	most := 0
	p.endConsume = func(r *pb.ConsumeRequest) error {
		most = max(most, len(r.GetReject()))
		return nil
	}
	co, held := holdMany(t, p, total)
	for _, first := range []int{0, 1} { // no adjacent sequences
		for i := first; i < total; i += 2 {
			held[i].Reject()
		}
	}
	require.NoError(t, co.Flush(soon(t)))
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Len(t, p.rejected["q"], total)
	require.LessOrEqual(t, most, 5000)
}

// If the connection breaks before a reject is confirmed, the message is redelivered and can be rejected again.
// Acknowledgements are retried.
func TestRejectIsNotRetried(t *testing.T) { synctest.Test(t, testRejectIsNotRetried) }

func testRejectIsNotRetried(t *testing.T) {
	p := newFakePair(t)
	lost := false
	p.endConsume = func(r *pb.ConsumeRequest) error {
		if len(r.GetReject()) > 0 && !lost {
			lost = true
			return status.Error(codes.Unavailable, "node failed")
		}
		return nil
	}
	c := p.client(client.Options{})
	fill(t, c, 2)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	for range 2 {
		d, err := co.Receive(soon(t))
		require.NoError(t, err)
		require.Equal(t, uint64(1), d.Sequence)
		d.Reject()
		require.NoError(t, co.Flush(soon(t)))
	}
	d, err := co.Receive(soon(t))
	require.NoError(t, err)
	require.Equal(t, uint64(2), d.Sequence)
	require.NoError(t, d.AckSync(soon(t)))
	p.mu.Lock()
	defer p.mu.Unlock()
	require.True(t, lost)
	require.Equal(t, []uint64{1}, p.rejected["q"])
}

// A node that does not support rejects ends the consumer.
func TestRejectRefused(t *testing.T) { synctest.Test(t, testRejectRefused) }

func testRejectRefused(t *testing.T) {
	p := newFakePair(t)
	p.endConsume = func(r *pb.ConsumeRequest) error {
		if len(r.GetReject()) > 0 {
			return refusal(t, codes.FailedPrecondition, "FEATURE_MISSING")
		}
		return nil
	}
	c := p.client(client.Options{})
	fill(t, c, 1)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	d, err := co.Receive(soon(t))
	require.NoError(t, err)
	d.Reject()
	require.ErrorIs(t, co.Flush(soon(t)), client.ErrRefused)
	_, err = co.Receive(soon(t))
	require.ErrorIs(t, err, client.ErrRefused)
}

// A dead letter describes its origin; other messages have no DeadLetter.
func TestStoredDeadLetter(t *testing.T) { synctest.Test(t, testStoredDeadLetter) }

func testStoredDeadLetter(t *testing.T) {
	moved := time.UnixMilli(1_700_000_000_123).UTC()
	p := newFakePair(t)
	c := p.client(client.Options{})
	fill(t, c, 2)
	p.mu.Lock()
	p.messages["q"][1].DeadLetter = &pb.DeadLetter{
		Queue: "orders", Subscription: "billing", Sequence: 17, Deliveries: 5, MovedAt: timestamppb.New(moved),
		Reason: pb.DeadLetterReason_DEAD_LETTER_REASON_MAX_DELIVERIES,
	}
	p.mu.Unlock()
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	d, err := co.Receive(soon(t))
	require.NoError(t, err)
	require.Nil(t, d.DeadLetter)
	d, err = co.Receive(soon(t))
	require.NoError(t, err)
	require.Equal(t, &client.DeadLetter{
		Queue: "orders", Subscription: "billing", Sequence: 17, Reason: "max-deliveries", Deliveries: 5,
		MovedAt: moved,
	}, d.DeadLetter)
}

// AlterQueue sends the whole configuration with the mask "*". Invalid configurations are not sent.
func TestAlterQueueSendsWholeConfig(t *testing.T) { synctest.Test(t, testAlterQueueSendsWholeConfig) }

func testAlterQueueSendsWholeConfig(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	config := admin.QueueConfig{MaxBytes: 5, MaxDeliveries: 3, DeadLetter: "dead"}
	q, err := admin.New(c).AlterQueue(soon(t), "q", config)
	require.NoError(t, err)
	require.Equal(t, config, q.Config)
	for _, wrong := range []admin.QueueConfig{
		{DeadLetter: string(make([]byte, 256))}, {DeadLetter: "\xff"},
	} {
		_, err = admin.New(c).AlterQueue(soon(t), "q", wrong)
		require.ErrorIs(t, err, client.ErrInvalid)
		require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
		_, _, err = admin.New(c).CreateQueue(soon(t), "new", admin.CreateQueueOptions{Config: wrong})
		require.ErrorIs(t, err, client.ErrInvalid)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Len(t, p.altered, 1)
	require.Equal(t, []string{"*"}, p.altered[0].GetUpdateMask().GetPaths())
	require.Equal(t, uint32(3), p.altered[0].GetConfig().GetMaxDeliveries())
}

// ReplayDeadLetters sends its options and returns the result. Requests with invalid names are not sent.
func TestReplayDeadLetters(t *testing.T) { synctest.Test(t, testReplayDeadLetters) }

func testReplayDeadLetters(t *testing.T) {
	p := newFakePair(t)
	var asked []*pb.ReplayDeadLettersRequest
	p.replay = func(r *pb.ReplayDeadLettersRequest) (*pb.ReplayDeadLettersResponse, error) {
		asked = append(asked, r)
		return &pb.ReplayDeadLettersResponse{Moved: 4, Skipped: 2}, nil
	}
	c := p.client(client.Options{})
	result, err := admin.New(c).ReplayDeadLetters(soon(t), "dead", admin.ReplayOptions{
		Subscription: "s", To: "orders", From: 7, Limit: 9,
	})
	require.NoError(t, err)
	require.Equal(t, admin.ReplayResult{Moved: 4, Skipped: 2}, result)
	p.mu.Lock()
	require.Len(t, asked, 1)
	r := asked[0]
	p.mu.Unlock()
	require.Equal(t, []any{"dead", "s", "orders", uint64(7), uint64(9)},
		[]any{r.GetQueue(), r.GetSubscription(), r.GetTo(), r.GetFromSequence(), r.GetLimit()})
	_, err = admin.New(c).ReplayDeadLetters(soon(t), "", admin.ReplayOptions{})
	require.ErrorIs(t, err, client.ErrInvalid)
	_, err = admin.New(c).ReplayDeadLetters(soon(t), "dead", admin.ReplayOptions{To: "\xff"})
	require.ErrorIs(t, err, client.ErrInvalid)
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Len(t, asked, 1, "invalid request was sent")
}

// An attempt that may have moved messages is not retried, and its outcome is unknown. An attempt that was not executed
// is retried.
func TestReplayIsNotRetried(t *testing.T) { synctest.Test(t, testReplayIsNotRetried) }

func testReplayIsNotRetried(t *testing.T) {
	p := newFakePair(t)
	attempts := 0
	p.replay = func(*pb.ReplayDeadLettersRequest) (*pb.ReplayDeadLettersResponse, error) {
		if attempts++; attempts == 1 {
			return nil, refusal(t, codes.Unavailable, "BLOCKED")
		}
		return nil, refusal(t, codes.Unavailable, "OUTCOME_UNKNOWN")
	}
	c := p.client(client.Options{})
	_, err := admin.New(c).ReplayDeadLetters(soon(t), "dead", admin.ReplayOptions{})
	require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	require.Contains(t, err.Error(), p.addrs[0])
	require.NotContains(t, err.Error(), "passthrough")

	p.mu.Lock()
	require.Equal(t, 2, attempts)
	p.replay = func(*pb.ReplayDeadLettersRequest) (*pb.ReplayDeadLettersResponse, error) {
		return nil, refusal(t, codes.ResourceExhausted, "QUEUE_FULL")
	}
	p.mu.Unlock()
	_, err = admin.New(c).ReplayDeadLetters(soon(t), "dead", admin.ReplayOptions{})
	require.ErrorIs(t, err, client.ErrLimit)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
}
