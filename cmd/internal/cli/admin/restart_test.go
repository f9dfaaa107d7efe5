// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// startedAt returns the start time of each node's process.
func startedAt(t *testing.T, p *harness.Pair) (at []time.Time) {
	t.Helper()
	for _, n := range p.Nodes {
		st, err := n.Status(t.Context())
		require.NoError(t, err)
		at = append(at, st.GetStartedAt().AsTime())
	}
	return at
}

// If either node could not start again because of its settings, no node is stopped.
func TestRestartWithInvalidSettings(t *testing.T) {
	p, err := harness.Start(t.Context(), harness.Options{
		Dir: t.TempDir(), Settings: harness.SmallNodes(), ConfigFiles: true,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, p.WaitReady(ctx, nil))
	c := clitest.CLI{T: t, Addr: strings.Join(p.Addresses(), ",")}
	active, standby := clitest.InSync(t, p, c)
	before := startedAt(t, p)
	for _, n := range []*harness.Node{standby, active} {
		good, err := os.ReadFile(n.ConfigFile())
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(n.ConfigFile(), append(good, []byte("\nlimts: {}\n")...), 0o600))
		stdout, stderr, code := c.Run("", "restart")
		require.Equal(t, cli.ExitError, code, "%s%s", stdout, stderr)
		require.Contains(t, stdout+stderr, "limts", "node %s", n.Name)
		require.Equal(t, before, startedAt(t, p))
		require.NoError(t, os.WriteFile(n.ConfigFile(), good, 0o600))
	}
	c.OK("restart")
	after := startedAt(t, p)
	for i := range p.Nodes {
		require.True(t, after[i].After(before[i]))
	}
}
