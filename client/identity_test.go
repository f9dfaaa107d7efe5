// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// refusal returns a node's error with a reason, as created by apierror.ToStatus.
func refusal(t *testing.T, code codes.Code, reason string) error {
	st, err := status.New(code, "injected").WithDetails(
		&errdetails.ErrorInfo{Reason: reason, Domain: "lockstep.v1"})
	require.NoError(t, err)
	return st.Err()
}

// briefly returns a context that expires while no node is active.
func briefly(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

// loseResponse makes the active commit the next transaction, send no response and lose its role. No node is active
// after that.
func (p *fakePair) loseResponse() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onPublish = func(n *fakeNode, _ *pb.PublishRequest) bool {
		p.onPublish = nil
		n.role = pb.Role_ROLE_STANDBY
		p.announce()
		return false
	}
}

// unknownOutcome returns a transaction that was committed although its first Commit received no response.
func unknownOutcome(t *testing.T, p *fakePair, c *client.Client) *client.Txn {
	p.loseResponse()
	txn := c.Begin().Publish("q", message("a"))
	// Longer than briefly: the client needs this time to detect that the node does not respond.
	ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
	defer cancel()
	_, err := txn.Commit(ctx)
	require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	return txn
}

// A Commit without an active node does not determine the outcome of the previous attempt, which may be committed.
func TestCommitOutcomeUnknown(t *testing.T) { synctest.Test(t, testCommitOutcomeUnknown) }

func testCommitOutcomeUnknown(t *testing.T) {
	p := newFakePair(t)
	txn := unknownOutcome(t, p, p.client(client.Options{}))
	for range 2 {
		_, err := txn.Commit(briefly(t))
		require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	}
	p.takeOver(1)
	r, err := txn.Commit(soon(t))
	require.NoError(t, err)
	require.True(t, r.Duplicate)
	require.Equal(t, []string{"a"}, p.bodies("q"))
}

// A refused Commit does not determine the outcome of the previous attempt: the node may refuse it before it checks the
// log.
func TestCommitRefusedAfterUnknownOutcome(t *testing.T) {
	synctest.Test(t, testCommitRefusedAfterUnknownOutcome)
}

func testCommitRefusedAfterUnknownOutcome(t *testing.T) {
	p := newFakePair(t)
	txn := unknownOutcome(t, p, p.client(client.Options{}))
	p.mu.Lock()
	p.refuseCommit = func(*pb.CommitRequest) error { return refusal(t, codes.ResourceExhausted, "QUEUE_FULL") }
	p.mu.Unlock()
	p.takeOver(1)
	for range 2 {
		_, err := txn.Commit(soon(t))
		require.ErrorIs(t, err, client.ErrLimit)
		require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	}
	p.mu.Lock()
	p.refuseCommit = nil
	p.mu.Unlock()
	r, err := txn.Commit(soon(t))
	require.NoError(t, err)
	require.True(t, r.Duplicate)
	require.Equal(t, []string{"a"}, p.bodies("q"))
}

// If the outcome of a commit is unknown and the node has evicted the producer, the outcome can never be determined,
// and the client does not send the commit again.
func TestCommitEvictedAfterUnknownOutcome(t *testing.T) {
	synctest.Test(t, testCommitEvictedAfterUnknownOutcome)
}

func testCommitEvictedAfterUnknownOutcome(t *testing.T) {
	p := newFakePair(t)
	txn := unknownOutcome(t, p, p.client(client.Options{}))
	p.mu.Lock()
	p.refuseCommit = func(*pb.CommitRequest) error {
		p.refuseCommit = nil
		return refusal(t, codes.OutOfRange, "PRODUCER_UNKNOWN")
	}
	before := p.commits
	p.mu.Unlock()
	p.takeOver(1)
	for range 3 {
		_, err := txn.Commit(soon(t))
		require.ErrorIs(t, err, client.ErrOutcomeLost)
		require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	}
	require.Equal(t, []string{"a"}, p.bodies("q"))
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Equal(t, before+1, p.commits, "another commit was sent")
}

// If the node has evicted the producer, a first attempt is repeated under another identity.
func TestCommitWithEvictedProducer(t *testing.T) { synctest.Test(t, testCommitWithEvictedProducer) }

func testCommitWithEvictedProducer(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	p.mu.Lock()
	p.refuseCommit = func(*pb.CommitRequest) error {
		p.refuseCommit = nil
		return refusal(t, codes.OutOfRange, "PRODUCER_UNKNOWN")
	}
	p.mu.Unlock()
	_, err := c.Begin().Publish("q", message("a")).Commit(soon(t))
	require.NoError(t, err)
	require.Equal(t, []string{"a"}, p.bodies("q"))
}

// After a refusal that is recorded in the log, the outcome is known.
func TestSettledRefusal(t *testing.T) { synctest.Test(t, testSettledRefusal) }

func testSettledRefusal(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	p.setRole(0, pb.Role_ROLE_BLOCKED)
	attempts := 0
	p.mu.Lock()
	p.nodes[0].role = pb.Role_ROLE_ACTIVE
	p.refuseCommit = func(r *pb.CommitRequest) error {
		if attempts++; attempts == 1 {
			require.False(t, r.GetProducer().GetRetry())
			return status.Error(codes.Unavailable, "node failed")
		}
		require.True(t, r.GetProducer().GetRetry(), "retry flag")
		st, err := status.New(codes.NotFound, "gone").WithDetails(&errdetails.ErrorInfo{
			Reason: "QUEUE_NOT_FOUND", Domain: "lockstep.v1", Metadata: map[string]string{"settled": "true"},
		})
		require.NoError(t, err)
		return st.Err()
	}
	p.announce()
	p.mu.Unlock()
	_, err := c.Begin().Publish("q", message("a")).Commit(soon(t))
	require.ErrorIs(t, err, client.ErrQueueNotFound)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
}

// If a node has refused every attempt, the outcome is known when the caller's deadline expires.
func TestRefusedUntilTheDeadline(t *testing.T) { synctest.Test(t, testRefusedUntilTheDeadline) }

func testRefusedUntilTheDeadline(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	p.mu.Lock()
	p.refuseCommit = func(*pb.CommitRequest) error { return refusal(t, codes.Unavailable, "BLOCKED") }
	p.mu.Unlock()
	for range 20 {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		_, err := c.Begin().Publish("q", message("a")).Commit(ctx)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		if errors.Is(err, client.ErrOutcomeUnknown) {
			continue // the deadline expired during an attempt
		}
		return
	}
	require.FailNow(t, "outcome unknown")
}

// An error without a reason is from gRPC or a proxy, not from a node: the outcome is unknown.
func TestErrorWithoutReason(t *testing.T) { synctest.Test(t, testErrorWithoutReason) }

func testErrorWithoutReason(t *testing.T) {
	for _, code := range []codes.Code{
		codes.ResourceExhausted, codes.Internal, codes.Unknown, codes.Aborted,
		codes.DataLoss,
	} {
		p := newFakePair(t)
		c := p.client(client.Options{})
		p.mu.Lock()
		p.refuseCommit = func(*pb.CommitRequest) error { return status.Error(code, "received message larger than max") }
		p.mu.Unlock()
		_, err := c.Begin().Publish("q", message("a")).Commit(soon(t))
		require.ErrorIs(t, err, client.ErrOutcomeUnknown, code)
	}
}

// An operation added while the outcome is unknown is rejected, because a retry must contain the same operations as
// the first attempt.
func TestOperationsAfterCommit(t *testing.T) { synctest.Test(t, testOperationsAfterCommit) }

func testOperationsAfterCommit(t *testing.T) {
	p := newFakePair(t)
	txn := unknownOutcome(t, p, p.client(client.Options{}))
	p.takeOver(1)
	txn.Publish("q", message("b"))
	_, err := txn.Commit(soon(t))
	require.ErrorIs(t, err, client.ErrInvalid)
	require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	r, err := txn.Commit(soon(t))
	require.NoError(t, err, "sent operations can be retried")
	require.True(t, r.Duplicate)
	require.Len(t, r.Results, 1)
	require.Equal(t, []string{"a"}, p.bodies("q"))
}

// After a refusal the outcome is known, and the transaction may be changed.
func TestOperationsAfterRefusal(t *testing.T) { synctest.Test(t, testOperationsAfterRefusal) }

func testOperationsAfterRefusal(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	p.mu.Lock()
	p.refuseCommit = func(*pb.CommitRequest) error {
		p.refuseCommit = nil
		return refusal(t, codes.ResourceExhausted, "QUEUE_FULL")
	}
	p.mu.Unlock()
	txn := c.Begin().Publish("q", message("a"))
	_, err := txn.Commit(soon(t))
	require.ErrorIs(t, err, client.ErrLimit)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
	_, err = txn.Publish("q", message("b")).Commit(soon(t))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, p.bodies("q"))
}

// An evicted producer with a request of unknown outcome does not continue under a new identity.
func TestProducerEvictedAfterUnknownOutcome(t *testing.T) {
	synctest.Test(t, testProducerEvictedAfterUnknownOutcome)
}

func testProducerEvictedAfterUnknownOutcome(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	p.mu.Lock()
	p.onPublish = func(*fakeNode, *pb.PublishRequest) bool {
		p.onPublish = nil
		p.refuse = func(r *pb.PublishRequest) *pb.RequestError {
			p.refuse = nil
			require.True(t, r.GetProducer().GetRetry(), "retry flag")
			return &pb.RequestError{Code: uint32(codes.OutOfRange), Reason: "PRODUCER_UNKNOWN", Message: "unknown producer"}
		}
		return false
	}
	p.mu.Unlock()
	_, err := c.Publish(soon(t), "q", message("a"))
	require.ErrorIs(t, err, client.ErrOutcomeLost)
	require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	require.Equal(t, []string{"a"}, p.bodies("q"))
}

// After a settled refusal, the outcome of a publish is also known.
func TestProducerSettledRefusal(t *testing.T) { synctest.Test(t, testProducerSettledRefusal) }

func testProducerSettledRefusal(t *testing.T) {
	for _, settled := range []bool{false, true} {
		p := newFakePair(t)
		c := p.client(client.Options{})
		p.mu.Lock()
		p.onPublish = func(*fakeNode, *pb.PublishRequest) bool {
			p.onPublish = nil
			p.refuse = func(*pb.PublishRequest) *pb.RequestError {
				return &pb.RequestError{
					Code: uint32(codes.ResourceExhausted), Reason: "QUEUE_FULL", Message: "full",
					Settled: settled,
				}
			}
			return false
		}
		p.mu.Unlock()
		_, err := c.Publish(soon(t), "q", message("a"))
		require.ErrorIs(t, err, client.ErrLimit)
		if settled {
			require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
		} else {
			require.ErrorIs(t, err, client.ErrOutcomeUnknown)
		}
	}
}

// A closed consumer sends no acks. AckSync returns an error for messages that were not acknowledged before.
func TestAckSyncAfterClose(t *testing.T) { synctest.Test(t, testAckSyncAfterClose) }

func testAckSyncAfterClose(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	for i := range 3 {
		_, err := c.Publish(soon(t), "q", message("%d", i))
		require.NoError(t, err)
	}
	consumer, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	var ds []*client.Delivery
	for range 3 {
		d, err := consumer.Receive(soon(t))
		require.NoError(t, err)
		ds = append(ds, d)
	}
	require.NoError(t, ds[0].AckSync(soon(t)))
	require.NoError(t, ds[0].AckSync(soon(t)), "acknowledged")
	ds[1].Nack()
	require.ErrorIs(t, ds[1].AckSync(soon(t)), client.ErrInvalid, "nacked")
	require.NoError(t, consumer.Close())
	err = ds[2].AckSync(soon(t))
	require.ErrorIs(t, err, client.ErrClosed)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown, "was sent")
	require.NoError(t, ds[0].AckSync(soon(t)), "acknowledged")
	require.Equal(t, 1, p.ackedCount("q"))
}

// An administrative call that is retried with the same Request uses the same sequence; other arguments are rejected.
func TestRetryWithSameRequest(t *testing.T) { synctest.Test(t, testRetryWithSameRequest) }

func testRetryWithSameRequest(t *testing.T) {
	w := newWorld(false, []move{canceled, noActive})
	c, err := client.OpenWith(t.Context(), client.Options{Addresses: []string{"node:1"}, DialOptions: w.options()})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	var r admin.Request
	purge := func(queue string) error {
		ctx, cancel := w.call(soon(t))
		defer cancel()
		_, err := admin.New(c).As(&r).PurgeQueue(ctx, queue, "")
		return err
	}
	for range 2 { // moves canceled and noActive
		require.ErrorIs(t, purge("q"), client.ErrOutcomeUnknown)
		err = purge("other")
		require.ErrorIs(t, err, client.ErrInvalid)
		require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	}
	require.NoError(t, purge("q"))
	require.ErrorIs(t, purge("q"), client.ErrInvalid, "already executed")
	require.Equal(t, 1, w.purged)
	ctx, cancel := w.call(soon(t))
	defer cancel()
	_, err = admin.New(c).PurgeQueue(ctx, "q", "")
	require.NoError(t, err)
	require.Equal(t, 2, w.purged, "a call without the Request is a new request")
}
