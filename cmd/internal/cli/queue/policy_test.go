// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// create and alter override the queue's settings for a subscription, show and list display the overrides, and --inherit
// removes them. alter keeps fields that are not given.
func TestSubscriptionPolicy(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "dead")
	c.OK("queue", "create", "orders", "--max-deliveries", "9")
	s := c.Lines("subscription", "create", "orders", "billing", "--max-deliveries", "3", "--dead-letter", "dead")[0]
	require.Equal(t, map[string]any{"max_deliveries": 3.0, "dead_letter": "dead"}, s["redelivery"])
	s = c.Lines("subscription", "alter", "orders", "billing", "--redelivery-delay", "5s", "--max-deliveries", "0",
		"--filter", "size > 3")[0]
	require.Equal(t, map[string]any{"max_deliveries": 0.0, "dead_letter": "dead", "redelivery_delay": "5s"},
		s["redelivery"])
	require.Equal(t, "size > 3", s["filter"])
	for _, args := range [][]string{
		{"queue", "show", "orders"},
		{"subscription", "list", "orders"},
		{"subscription", "list"},
	} {
		for _, part := range []string{"deliveries unlimited", "letters dead", "delay 5s"} {
			require.Contains(t, c.OK(args...), part, args)
		}
	}
	s = c.Lines("subscription", "alter", "orders", "billing", "--inherit", "max-deliveries,redelivery-delay")[0]
	require.Equal(t, map[string]any{"dead_letter": "dead"}, s["redelivery"])
	require.Equal(t, "size > 3", s["filter"])
	s = c.Lines("subscription", "alter", "orders", "billing", "--inherit", "all", "--filter", "")[0]
	require.NotContains(t, s, "redelivery")
	require.NotContains(t, s, "filter")

	for want, args := range map[string][]string{
		`--inherit "ttl": must be all`:  {"--inherit", "ttl"},
		"both set and inherited":        {"--inherit", "dead-letter", "--dead-letter", "dead"},
		"create it first":               {"--dead-letter", "none"},
		"at least one of --filter, --i": nil,
	} {
		_, stderr, code := c.Run("", append([]string{"subscription", "alter", "orders", "billing"}, args...)...)
		require.NotEqual(t, cli.ExitOK, code)
		require.Contains(t, stderr, want)
	}
}
