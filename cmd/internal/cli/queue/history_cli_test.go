// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

func TestShowHistory(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "orders")
	for period, interval := range map[string]int{"1h": 10, "24h": 60} {
		h := c.Lines("queue", "show", "orders", "--history", "--since", period)[0]
		require.InDelta(t, interval, h["interval_seconds"], 0)
		require.Equal(t, "orders", h["queue"])
	}
	require.NotContains(t, c.Lines("queue", "show", "--history")[0], "queue")
	c.OK("queue", "show", "orders", "--history")
	for _, refused := range []struct {
		code int
		args []string
	}{
		{cli.ExitUsage, nil},
		{cli.ExitUsage, []string{"orders", "--since", "1h"}},
		{cli.ExitUsage, []string{"orders", "--history", "--since", "25h"}},
		{cli.ExitUsage, []string{"orders", "--history", "--since", "0"}},
		{cli.ExitError, []string{"none", "--history"}},
	} {
		_, stderr, code := c.Run("", append([]string{"queue", "show"}, refused.args...)...)
		require.Equal(t, refused.code, code, "%v: %s", refused.args, stderr)
	}
}

// The history of a partitioned queue requires the name of a partition.
func TestShowHistoryPartitioned(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "orders", "--partitions", "2")
	_, stderr, code := c.Run("", "queue", "show", "orders", "--history")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "orders#0/2")
	c.OK("queue", "show", "orders#0/2", "--history")
}
