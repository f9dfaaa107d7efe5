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

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// A Prepare without a response is retried under the same xid and sequence. Until then, no other operation is allowed on
// the transaction.
func TestPrepareStaysInDoubt(t *testing.T) { synctest.Test(t, testPrepareStaysInDoubt) }

func testPrepareStaysInDoubt(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	p.losesReply()
	x := c.Begin().Publish("q", message("a"))
	require.ErrorIs(t, x.Prepare(briefly(t), "xid"), client.ErrOutcomeUnknown)
	_, err := x.Commit(soon(t))
	require.ErrorIs(t, err, client.ErrInvalid)
	require.ErrorContains(t, err, `"xid"`)
	require.ErrorIs(t, x.Prepare(soon(t), "other"), client.ErrInvalid)
	p.takeOver(1)
	require.NoError(t, x.Prepare(soon(t), "xid"))
	require.Equal(t, []string{"a"}, p.bodies("q"), "it was stored once")
	require.ErrorIs(t, x.Prepare(soon(t), "xid"), client.ErrInvalid, "it is prepared")
}

// A message that was processed elsewhere ends the transaction, and nothing is stored.
func TestTransactionOfProcessed(t *testing.T) { synctest.Test(t, testTransactionOfProcessed) }

func testTransactionOfProcessed(t *testing.T) {
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
	require.ErrorIs(t, err, client.ErrInvalid, "it has ended")
	require.Empty(t, p.bodies("q"))
	x.Rollback() // has no effect
}

// The last error contains the cause even if the next attempt ended with the deadline: a node detects the client's
// deadline slightly earlier than the client.
func TestLastErrorSaysWhy(t *testing.T) { synctest.Test(t, testLastErrorSaysWhy) }

func testLastErrorSaysWhy(t *testing.T) {
	p := newFakePair(t)
	p.refuseCommit = func(*pb.CommitRequest) error {
		if p.commits == 1 {
			return status.Error(codes.Unavailable, "only one node is in sync")
		}
		return status.Error(codes.DeadlineExceeded, "context deadline exceeded")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := p.client(client.Options{}).Begin().Publish("q", message("x")).Commit(ctx)
	require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	require.ErrorContains(t, err, "only one node is in sync")
}
