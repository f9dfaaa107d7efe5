// SPDX-License-Identifier: Apache-2.0

package transaction_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// Prepared transactions are listed, committed and rolled back.
func TestTxn(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "orders")
	require.JSONEq(t, "[]", c.OK("txn", "list", "--output", "json"))
	conn, err := client.OpenWith(t.Context(), client.Options{Addresses: strings.Split(c.Addr, ",")})
	require.NoError(t, err)
	defer func() { require.NoError(t, conn.Close()) }()
	for _, xid := range []string{"order/1", "order/2"} {
		require.NoError(t, conn.Begin().Publish("orders", client.Message{Body: []byte(xid)}).Prepare(t.Context(), xid))
	}
	table := c.OK("txn", "list")
	require.Contains(t, table, "orders: publishes 1")
	require.Less(t, strings.Index(table, "order/1"), strings.Index(table, "order/2"))

	_, stderr, code := c.Answering("n\n", "txn", "commit", "order/1")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "[y/N]")
	_, _, code = c.Answering("y\n", "txn", "commit", "order/1")
	require.Equal(t, cli.ExitOK, code)
	require.Equal(t, []map[string]any{{"committed": false, "xid": "order/2"}},
		c.Lines("txn", "rollback", "order/2", "--yes"))
	require.Equal(t, []map[string]any{{"committed": true, "xid": "order/1"}}, c.Lines("txn", "commit", "order/1", "--yes"))
	_, stderr, code = c.Run("", "txn", "rollback", "order/1", "--yes")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "has committed")
	_, stderr, code = c.Run("", "txn", "rollback", "nothing", "--yes")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "`lockstep txn", "the hint for admin.ErrNoTransaction")
	require.Equal(t, "order/1", c.Lines("browse", "orders")[0]["body"])
	require.JSONEq(t, "[]", c.OK("txn", "list", "--output", "json"))
	decided, err := admin.New(conn).CommitPrepared(t.Context(), "order/1")
	require.NoError(t, err)
	require.True(t, decided.Heuristic, "the coordinator is notified")
	_, err = admin.New(conn).CommitPrepared(t.Context(), "order/2")
	require.ErrorIs(t, err, admin.ErrHeuristic)
}
