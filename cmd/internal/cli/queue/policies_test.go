// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// put, list and delete manage policies. queue show displays the source of each value, and alter --reset returns an
// option to the policy.
func TestPolicies(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	require.Equal(t, "no policies\n", c.OK("policy", "list"))
	c.OK("queue", "create", "orders.dead")
	c.OK("queue", "create", "orders.eu", "--max-messages", "100", "--ttl", "0")
	p := c.Lines("policy", "put", "orders.*", "--max-deliveries", "5", "--dead-letter", "orders.dead", "--ttl", "1h",
		"--priority", "10")[0]
	require.Equal(t, map[string]any{
		"pattern": "orders.*", "priority": 10.0, "limits": map[string]any{},
		"defaults": map[string]any{"max_deliveries": 5.0, "dead_letter": "orders.dead", "ttl": "1h"},
	}, p)
	c.OK("policy", "put", "*", "--limit-max-messages", "10", "--limit-max-bytes", "1GiB")
	require.Contains(t, c.OK("policy", "list"), "1GiB")
	require.Len(t, c.Lines("policy", "list"), 2)

	q := c.Lines("queue", "show", "orders.eu")[0]
	require.Equal(t, map[string]any{
		"max_messages": "policy *", "max_bytes": "policy *", "ttl": "queue", "max_deliveries": "policy orders.*",
		"dead_letter": "policy orders.*",
	}, q["sources"])
	require.InDelta(t, 10, q["max_messages"], 0)
	require.NotContains(t, q, "ttl")
	require.Regexp(t, `5 +policy orders\.\*`, c.OK("queue", "show", "orders.eu"))
	require.Equal(t, map[string]any{"max_messages": "policy *", "max_bytes": "policy *", "ttl": "policy orders.*"},
		c.Lines("queue", "show", "orders.dead")[0]["sources"], "it is not its own dead-letter queue")

	q = c.Lines("queue", "alter", "orders.eu", "--max-deliveries", "9", "--reset", "ttl,max-messages")[0]
	require.InDelta(t, 9, q["max_deliveries"], 0)
	require.Equal(t, "1h", q["ttl"])
	_, stderr, code := c.Run("", "queue", "alter", "orders.eu", "--reset", "max_ttl")
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, stderr, "max_ttl")

	c.OK("policy", "delete", "*")
	c.OK("policy", "delete", "orders.*")
	q = c.Lines("queue", "show", "orders.eu")[0]
	require.Equal(t, map[string]any{"max_messages": "default", "max_bytes": "default", "max_deliveries": "queue"},
		q["sources"])
	for want, args := range map[string][]string{
		"policy not found":                     {"delete", "orders.*"},
		"sets no option":                       {"put", "orders.*"},
		"create it first":                      {"put", "orders.*", "--dead-letter", "none"},
		"pattern \"a b\"":                      {"put", "a b", "--ttl", "1h"},
		"unknown flag":                         {"put", "a", "--priorities"},
		"maximum is 1000000":                   {"put", "a", "--ttl", "1h", "--priority", "1000001"},
		"expected lockstep policy put PATTERN": {"put"},
		"invalid argument \"x":                 {"put", "a", "--limit-ttl", "x"},
	} {
		_, stderr, code := c.Run("", append([]string{"policy"}, args...)...)
		require.NotEqual(t, cli.ExitOK, code)
		require.Contains(t, stderr, want)
	}
}
