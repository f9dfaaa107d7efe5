// SPDX-License-Identifier: Apache-2.0

package benchcli_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// Nodes with and without TLS are measured in each round, and compared at the end.
func TestBenchWithTLS(t *testing.T) {
	c := clitest.CLI{T: t}
	lines := c.Lines("bench", "publish", "--tls", "--standalone", "--rounds", "2", "--messages", "200", "--window", "10")
	require.Len(t, lines, 6)
	setups := make(map[any]int)
	for _, l := range lines {
		setups[l["setup"]]++
		require.Positive(t, l["rate_per_s"])
	}
	require.Equal(t, map[any]int{"standalone": 3, "standalone, TLS, rules": 3}, setups)
	require.Equal(t, true, lines[5]["median"])
	require.Positive(t, lines[5]["ratio"])
	_, stderr, code := c.Run("", "bench", "publish", "--tls", "--addr", "127.0.0.1:1")
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, stderr, "omit --addr")
}
