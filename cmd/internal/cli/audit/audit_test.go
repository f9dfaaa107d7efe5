// SPDX-License-Identifier: Apache-2.0

package audit_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// Each request to either node is recorded with caller, method and result, but without message contents.
func TestAuditTail(t *testing.T) {
	p, c := clitest.StartNodes(t, false)
	active, _ := clitest.InSync(t, p, c)
	c.OK("queue", "create", "orders")
	c.OK("publish", "orders", "a body")
	_, _, code := c.Run("", "queue", "create", "orders", "--max-messages", "5")
	require.NotZero(t, code, "the queue exists")
	c.OK("pause", "--reason", "a test")
	c.OK("resume")
	lines := c.Lines("audit", "tail", "--method", "CreateQueue")
	require.Len(t, lines, 2)
	first := lines[0]
	require.Equal(t, "anonymous", first["principal"])
	require.Equal(t, active.Name, first["node"])
	require.Equal(t, "lockstep.v1.QueueService/CreateQueue", first["method"])
	require.Equal(t, "orders", first["object"])
	require.Equal(t, "done", first["outcome"])
	require.Contains(t, first["address"], "127.0.0.1:")
	require.NotEmpty(t, first["time"])
	require.Positive(t, first["lsn"])
	require.Equal(t, "failed", lines[1]["outcome"])
	require.Equal(t, "ALREADY_EXISTS", lines[1]["code"])

	text := c.OK("audit", "tail", "--last", "100")
	require.Contains(t, text, "anonymous SetPaused")
	require.Contains(t, text, " 127.0.0.1:")
	require.Contains(t, text, `"reason":"a test"`)
	require.NotContains(t, text, "a body")
	require.NotContains(t, text, "Publish", "message calls are not administrative")
	require.Empty(t, c.Lines("audit", "tail", "--principal", "ann"))
}
