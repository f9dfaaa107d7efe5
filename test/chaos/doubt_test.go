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

// TestCommitInDoubt: the active sleeps (SIGSTOP) with a transaction that waits for a sleeping standby, so that Commit
// cannot know what became of it; then no node answers at all, and Commit knows no more than before; then both wake up,
// and a third Commit asks for the same transaction: it is stored once.
func TestCommitInDoubt(t *testing.T) {
	p := start(t, cluster.Options{Settings: steady()})
	messages := newQueue(t, p, "doubt")
	c, err := client.Open(t.Context(), client.Options{Addresses: p.Addresses(), ProbeInterval: 200 * time.Millisecond})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	within := func(d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), d)
		t.Cleanup(cancel)
		return ctx
	}
	txn := func(body string) *client.Txn { return c.Begin().Publish("doubt", client.Message{Body: []byte(body)}) }
	_, err = txn("warm").Commit(limited(t))
	require.NoError(t, err)

	active, standby := inSync(t, p)
	require.NoError(t, standby.Pause())
	doubtful := txn("doubtful")
	// The active waits for its standby for longer; and it has to be asked, which takes a busy machine some time.
	_, err = doubtful.Commit(within(time.Second))
	require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	require.NoError(t, active.Pause())
	for deadline := time.Now().Add(bound); ; {
		_, noActive := c.WaitActive(within(10 * time.Millisecond))
		_, err = doubtful.Commit(within(300 * time.Millisecond))
		require.ErrorIs(t, err, client.ErrOutcomeUnknown, "no node has answered")
		if noActive != nil {
			break // this Commit found no node to ask
		}
		require.True(t, time.Now().Before(deadline), "the client should notice that no node answers")
	}

	require.NoError(t, active.Wake())
	require.NoError(t, standby.Wake())
	r, err := doubtful.Commit(limited(t))
	require.NoError(t, err)
	require.Len(t, r.Results, 1)
	require.Equal(t, uint64(2), messages(), "the first one, and the doubtful one once")
}
