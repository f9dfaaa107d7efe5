// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// A Prepare without a response is retried under the same xid and sequence. Until a retry receives a response, no
// other operation is allowed on the transaction.
func TestPrepareOutcomeUnknown(t *testing.T) { synctest.Test(t, testPrepareOutcomeUnknown) }

func testPrepareOutcomeUnknown(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	p.loseResponse()
	x := c.Begin().Publish("q", message("a"))
	require.ErrorIs(t, x.Prepare(briefly(t), "xid"), client.ErrOutcomeUnknown)
	_, err := x.Commit(soon(t))
	require.ErrorIs(t, err, client.ErrInvalid)
	require.Contains(t, err.Error(), `"xid"`)
	require.ErrorIs(t, x.Prepare(soon(t), "other"), client.ErrInvalid)
	p.takeOver(1)
	require.NoError(t, x.Prepare(soon(t), "xid"))
	require.Equal(t, []string{"a"}, p.bodies("q"), "it was stored once")
	require.ErrorIs(t, x.Prepare(soon(t), "xid"), client.ErrInvalid, "prepared")
}

// If another consumer has processed a message of the transaction, Commit fails, nothing is stored, and the transaction
// ends.
func TestCommitWithProcessedMessage(t *testing.T) { synctest.Test(t, testCommitWithProcessedMessage) }

func testCommitWithProcessedMessage(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	p.mu.Lock()
	p.refuseCommit = func(*pb.CommitRequest) error { return refusal(t, codes.Aborted, "ALREADY_ACKNOWLEDGED") }
	p.mu.Unlock()
	x := c.Begin().Publish("q", message("a"))
	_, err := x.Commit(soon(t))
	require.ErrorIs(t, err, client.ErrProcessed)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
	_, err = x.Commit(soon(t))
	require.ErrorIs(t, err, client.ErrInvalid, "ended")
	require.Empty(t, p.bodies("q"))
	x.Rollback() // has no effect
}

// The returned error contains the cause even if the last attempt ended with the deadline: a node may detect the
// client's deadline before the client does.
func TestLastErrorContainsCause(t *testing.T) { synctest.Test(t, testLastErrorContainsCause) }

func testLastErrorContainsCause(t *testing.T) {
	p := newFakePair(t)
	p.refuseCommit = func(*pb.CommitRequest) error {
		if p.commits == 1 {
			return status.Error(codes.Unavailable, "only one")
		}
		return status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := p.client(client.Options{}).Begin().Publish("q", message("x")).Commit(ctx)
	require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	require.Contains(t, err.Error(), "only one")
}

// A message that a transaction has acknowledged is not delivered again by a stream that was opened before the commit.
// Messages of a prepared transaction are delivered again, because it may be rolled back.
func TestAcknowledgedByTransactionDuringFailover(t *testing.T) {
	simulated(t, "committed", func(t *testing.T) {
		lateDelivery(t, func(c *client.Client, d *client.Delivery) error {
			_, err := c.Begin().Take(d).Commit(soon(t))
			return err
		}, 2)
	})
	simulated(t, "prepared", func(t *testing.T) {
		lateDelivery(t, func(c *client.Client, d *client.Delivery) error {
			return c.Begin().Take(d).Prepare(soon(t), "xid")
		}, 1)
	})
}

// lateDelivery receives a message, fails over, and answers the message while the new active is about to deliver it
// again. next is the sequence that the consumer must receive next.
func lateDelivery(t *testing.T, answer func(c *client.Client, d *client.Delivery) error, next uint64) {
	t.Helper()
	p := newFakePair(t)
	c := p.client(client.Options{})
	fill(t, c, 2)
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{Prefetch: 1})
	require.NoError(t, err)
	d, err := co.Receive(soon(t))
	require.NoError(t, err)
	require.Equal(t, uint64(1), d.Sequence)
	about, answered := make(chan struct{}), make(chan struct{})
	var once sync.Once
	p.mu.Lock()
	p.beforeMessages = func(n *fakeNode) {
		if n == p.nodes[1] {
			once.Do(func() { close(about) })
			<-answered
		}
	}
	p.mu.Unlock()
	p.setRole(0, pb.Role_ROLE_STANDBY)
	p.takeOver(1)
	<-about
	require.NoError(t, answer(c, d))
	close(answered)
	d, err = co.Receive(soon(t))
	require.NoError(t, err)
	require.Equal(t, next, d.Sequence)
}
