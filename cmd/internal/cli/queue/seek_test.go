// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// queue seek moves a subscription of a queue with retention to each kind of position.
func TestSeek(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "events", "--retention-messages", "100")
	c.OK("publish", "events", "one")
	c.OK("publish", "events", "two")
	consume := func(n int) string {
		return strings.Join(strings.Fields(c.OK("consume", "events", "-f", "-n", []string{"0", "1", "2", "3"}[n])), " ")
	}
	require.Equal(t, "one two", consume(2))
	seek := func(to string, sequence, backlog float64) {
		t.Helper()
		require.Equal(t, map[string]any{"sequence": sequence, "backlog": backlog},
			c.Lines("queue", "seek", "events", "--to", to)[0])
	}
	seek("earliest", 1, 2)
	require.Equal(t, "one two", consume(2))
	seek("2", 2, 1)
	require.Equal(t, "two", consume(1))
	for _, position := range []string{"1h", time.Now().Add(-time.Hour).Format(time.RFC3339), "2026-01-01 10:00:00"} {
		moved := c.Lines("queue", "seek", "events", "-s", "default", "--to", position)[0]
		require.InDelta(t, 1, moved["sequence"], 0, position)
		require.InDelta(t, 2, moved["backlog"], 0, position)
	}
	seek("latest", 3, 0)
	require.InDelta(t, 2, c.Lines("subscription", "create", "events", "old", "--start", "1h")[0]["backlog"], 0)
	require.InDelta(t, 1, c.Lines("subscription", "create", "events", "late", "--start", "2")[0]["backlog"], 0)
	for _, refused := range []struct {
		want string
		code int
		args []string
	}{
		{"start at 1", cli.ExitUsage, []string{"--to", "0"}},
		{"must not be negative", cli.ExitUsage, []string{"--to", "-5m"}},
		{"must be earliest", cli.ExitUsage, []string{"--to", "yesterday"}},
		{"to", cli.ExitUsage, nil},
		{"in the future", cli.ExitError, []string{"--to", "2226-01-01T00:00:00Z"}},
		{"next sequence of the queue is 3", cli.ExitError, []string{"--to", "9"}},
		{"subscription not found", cli.ExitError, []string{"--to", "1", "--subscription", "other"}},
	} {
		_, stderr, code := c.Run("", append([]string{"queue", "seek", "events"}, refused.args...)...)
		require.Equal(t, refused.code, code, "%v: %s", refused.args, stderr)
		require.Contains(t, stderr, refused.want, refused.args)
	}
}

// queue seek moves all partitions. Sequences belong to a partition, so that the text contains none.
func TestSeekPartitioned(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "events", "--partitions", "2", "--retention-messages", "100")
	c.OK("publish", "events", "one")
	require.NotContains(t, c.OK("queue", "seek", "events", "--to", "earliest"), "sequence")
	require.Contains(t, c.OK("queue", "seek", "events#0/2", "--to", "earliest"), "sequence 1")
}
