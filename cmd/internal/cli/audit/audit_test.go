// SPDX-License-Identifier: Apache-2.0

package audit_test

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/cmd/internal/commands"
	"github.com/lockstep-mq/lockstep/test/harness"
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

// --follow reports a node that has stopped, and continues with its new records after a restart. Each record is printed
// once.
func TestFollowReconnects(t *testing.T) {
	settings := harness.SmallNodes()
	settings["audit.file"] = filepath.Join(t.TempDir(), "audit.jsonl")
	p, c := clitest.StartNodesWith(t, true, settings)
	c.OK("queue", "create", "older")
	for range 3 {
		c.OK("queue", "purge", "older", "--yes")
	}
	c.OK("queue", "create", "first")
	ctx, stop := context.WithCancel(t.Context())
	stdout, out := io.Pipe()
	stderr, errOut := io.Pipe()
	code := make(chan int, 1)
	go func() {
		code <- commands.Run(ctx, strings.Fields("audit tail --follow --last 3 --method CreateQueue -o json"),
			c.Process(strings.NewReader(""), out, errOut))
		_, _ = out.Close(), errOut.Close()
	}()
	records, reports := bufio.NewScanner(stdout), bufio.NewScanner(stderr)
	next := func() string {
		t.Helper()
		require.True(t, records.Scan(), "the command has ended")
		var r struct{ Object string }
		require.NoError(t, json.Unmarshal(records.Bytes(), &r))
		return r.Object
	}
	require.Equal(t, "first", next())
	for _, queue := range []string{"second", "third"} {
		require.NoError(t, p.Nodes[0].Stop())
		require.True(t, reports.Scan(), "the command has ended")
		require.Contains(t, reports.Text(), p.Nodes[0].Address)
		require.NoError(t, p.Nodes[0].Start())
		require.NoError(t, p.WaitReady(t.Context(), nil))
		c.OK("queue", "create", queue)
		require.Equal(t, queue, next())
	}
	stop()
	require.False(t, records.Scan())
	require.Equal(t, cli.ExitOK, <-code)
}

// --follow fails if no node responds.
func TestFollowNothing(t *testing.T) {
	c := clitest.CLI{T: t, Addr: "127.0.0.1:1"}
	_, stderr, code := c.Run("", "audit", "tail", "--follow")
	require.Equal(t, cli.ExitError, code, stderr)
}
