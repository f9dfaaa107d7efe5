// SPDX-License-Identifier: Apache-2.0

//go:build unix

package timing

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
)

// While the standby does not respond, Commit returns an unknown outcome after its deadline of 100 ms. While no node
// responds, the outcome remains unknown. When both nodes respond again, another Commit returns the outcome, and the
// transaction is stored once.
func TestCommitUnknownOutcome(t *testing.T) {
	run(t, func(t *testing.T, p *pair) {
		c := p.client()
		_, _, err := admin.New(c).CreateQueue(t.Context(), "unknown", admin.CreateQueueOptions{})
		require.NoError(t, err)
		txn := func(body string) *client.Txn { return c.Begin().Publish("unknown", client.Message{Body: []byte(body)}) }
		_, err = txn("first").Commit(t.Context())
		require.NoError(t, err)

		active, standby := p.inSync()
		p.freeze(standby, true)
		uncertain := txn("uncertain")
		start := time.Now()
		_, err = uncertain.Commit(p.within(100 * time.Millisecond))
		require.ErrorIs(t, err, client.ErrOutcomeUnknown)
		require.Equal(t, 100*time.Millisecond, time.Since(start))

		p.freeze(active, true)
		for start = time.Now(); ; {
			_, noActive := c.WaitActive(p.within(10 * time.Millisecond))
			began := time.Now()
			_, err = uncertain.Commit(p.within(300 * time.Millisecond))
			require.ErrorIs(t, err, client.ErrOutcomeUnknown, "no node responds")
			require.LessOrEqual(t, time.Since(began), 300*time.Millisecond)
			if noActive != nil {
				break // this Commit reached no node
			}
			require.Less(t, time.Since(start), 10*time.Second, "the client should detect that no node responds")
		}

		p.freeze(active, false)
		p.freeze(standby, false)
		r, err := uncertain.Commit(p.within(10 * time.Second))
		require.NoError(t, err)
		require.Len(t, r.Results, 1)
		q, err := admin.New(c).GetQueue(t.Context(), "unknown")
		require.NoError(t, err)
		require.EqualValues(t, 2, q.Messages, "the first transaction, and the one with the unknown outcome once")
	})
}
