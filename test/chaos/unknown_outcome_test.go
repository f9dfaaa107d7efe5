// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// The active is suspended (SIGSTOP) with a transaction that waits for a suspended standby, so Commit returns an unknown
// outcome. While no node responds, a second Commit returns the same. After both nodes have resumed, a third Commit
// retries the same transaction, which is stored once.
func TestCommitUnknownOutcome(t *testing.T) {
	p := start(t, cluster.Options{Settings: steady()})
	messages := newQueue(t, p, "unknown")
	c, err := client.OpenWith(t.Context(), client.Options{Addresses: p.Addresses(), ProbeInterval: 200 * time.Millisecond})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	within := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		t.Cleanup(cancel)
		return ctx
	}
	txn := func(body string) *client.Txn { return c.Begin().Publish("unknown", client.Message{Body: []byte(body)}) }
	_, err = txn("warm").Commit(limited(t))
	require.NoError(t, err)

	active, standby := inSync(t, p)
	require.NoError(t, standby.Pause())
	uncertain := txn("uncertain")
	// The timeout is shorter than the active's wait for its standby, but long enough for the request to reach the active
	// on a busy machine.
	_, err = uncertain.Commit(within(time.Second))
	require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	require.NoError(t, active.Pause())
	for deadline := time.Now().Add(bound); ; {
		_, noActive := c.WaitActive(within(10 * time.Millisecond))
		_, err = uncertain.Commit(within(300 * time.Millisecond))
		require.ErrorIs(t, err, client.ErrOutcomeUnknown, "no node has responded")
		if noActive != nil {
			break // this Commit reached no node
		}
		require.True(t, time.Now().Before(deadline), "the client should detect that no node responds")
	}

	require.NoError(t, active.Wake())
	require.NoError(t, standby.Wake())
	r, err := uncertain.Commit(limited(t))
	require.NoError(t, err)
	require.Len(t, r.Results, 1)
	require.Equal(t, uint64(2), messages(), "each transaction is stored once")
}
