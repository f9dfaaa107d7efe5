// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// TestPrepareStaysInDoubt: a Prepare that was not answered is repeated under the same xid and sequence, and nothing
// else is done with the transaction until it is answered.
func TestPrepareStaysInDoubt(t *testing.T) {
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

// TestTransactionOfProcessed: what was processed elsewhere ends the transaction, with nothing stored.
func TestTransactionOfProcessed(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	p.mu.Lock()
	p.refuseCommit = func(*pb.CommitRequest) error { return refusal(t, codes.Aborted, "ALREADY_ACKNOWLEDGED") }
	p.mu.Unlock()
	x := c.Transaction().Publish("q", message("a"))
	_, err := x.Commit(soon(t))
	require.ErrorIs(t, err, client.ErrProcessed)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
	_, err = x.Commit(soon(t))
	require.ErrorIs(t, err, client.ErrInvalid, "it has ended")
	require.Empty(t, p.bodies("q"))
	x.Rollback() // does nothing
}
