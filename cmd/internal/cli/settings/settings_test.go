// SPDX-License-Identifier: Apache-2.0

package settings_test

import (
	"strings"
	"testing"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/stretchr/testify/require"
)

// Settings change without a restart, on both nodes or on one. They survive a failover and a restart, and can be reset.
func TestRunningSettings(t *testing.T) {
	p, c := clitest.StartNodes(t, false)
	active, standby := clitest.InSync(t, p, c)
	c.OK("queue", "create", "q")
	setting := func(name string) map[string]any {
		return c.Lines("settings", "get", name)[0]
	}
	newValue := func(name string, values map[string]any) {
		t.Helper()
		require.Eventually(t, func() bool {
			nodes, _ := setting(name)["nodes"].(map[string]any)
			for node, value := range values {
				if nodes[node] != value {
					return false
				}
			}
			return true
		}, time.Minute, 20*time.Millisecond, "%s should be %v, is %v", name, values, setting(name))
	}

	// Settings of the pair: a limit applies to the active node.
	require.Equal(t, "1KiB", c.Lines("settings", "set", "limits.message-bytes", "1KiB")[0]["active_value"])
	_, stderr, code := c.Run("", "publish", "q", strings.Repeat("x", 2000))
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "limits.message-bytes")
	newValue("limits.message-bytes", map[string]any{"a": "1KiB", "b": "1KiB"})
	require.Equal(t, true, setting("limits.message-bytes")["changed"])
	c.OK("switchover", "--to", standby.Name)
	_, stderr, code = c.Run("", "publish", "q", strings.Repeat("x", 2000))
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "limits.message-bytes")
	clitest.InSync(t, p, c)
	require.NoError(t, standby.Stop())
	require.NoError(t, standby.Start())
	clitest.InSync(t, p, c)
	newValue("limits.message-bytes", map[string]any{standby.Name: "1KiB"})
	c.OK("settings", "unset", "limits.message-bytes")
	c.OK("publish", "q", strings.Repeat("x", 2000))

	// Settings of a node.
	c.OK("settings", "set", "log.level", "debug", "--node", active.Name)
	newValue("log.level", map[string]any{active.Name: "debug", standby.Name: "info"})
	require.Contains(t, clitest.Logged(t, active), "setting changed")
	c.OK("settings", "set", "log.level", "warn")
	newValue("log.level", map[string]any{active.Name: "warn", standby.Name: "warn"})
}

// min-in-sync is stored in the cluster record. It can therefore be changed while the pair rejects writes because of
// min-in-sync.
func TestRunningMinInSync(t *testing.T) {
	p, c := clitest.StartNodes(t, false)
	_, standby := clitest.InSync(t, p, c)
	c.OK("queue", "create", "q")
	c.OK("settings", "set", "min-in-sync", "2")
	c.OK("switchover")
	clitest.InSync(t, p, c)
	require.Equal(t, "2\n", c.OK("settings", "get", "min-in-sync"), "the node that becomes active keeps it")
	require.NoError(t, standby.Stop())
	// While the active still waits for the stopped node, requests may be executed later: their outcome is unknown.
	require.Eventually(t, func() bool { return strings.Contains(c.OK("status"), "min-in-sync-not-met") },
		time.Minute, 10*time.Millisecond)
	// The client retries until its timeout. The outcome of a request without a response by then is unknown.
	_, stderr, code := c.Run("", "queue", "create", "another", "--timeout", "2s")
	require.Contains(t, []int{cli.ExitError, cli.ExitUnknown}, code, stderr)
	require.Contains(t, stderr, "min_in_sync")
	// A publish does not wait for the stopped node: it fails, and nothing is stored.
	_, stderr, code = c.Run("", "publish", "q", "refused")
	require.Equal(t, cli.ExitError, code, stderr)
	require.Contains(t, stderr, "min_in_sync")
	c.OK("settings", "set", "min-in-sync", "1")
	c.OK("publish", "q", "x")
	require.NotContains(t, c.OK("browse", "q"), "refused")
	_, stderr, code = c.Run("", "settings", "set", "min-in-sync", "2")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "only one")
	require.NoError(t, standby.Start())
	clitest.InSync(t, p, c)
	c.OK("settings", "unset", "min-in-sync")
	require.Equal(t, false, c.Lines("settings", "get", "min-in-sync")[0]["changed"])
}

// Invalid settings are rejected, with the reason and the valid values.
func TestInvalidSettings(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	for want, args := range map[string][]string{
		"did you mean log.level?":       {"set", "log.levle", "debug"},
		"cannot be changed at run time": {"set", "sync", "off"},
		"is a setting of the pair":      {"set", "limits.queues", "7", "--node", "a"},
	} {
		_, stderr, code := c.Run("", append([]string{"settings"}, args...)...)
		require.Equal(t, cli.ExitUsage, code, args)
		require.Contains(t, stderr, want, args)
	}
	for want, args := range map[string][]string{
		"is not one of debug, info, warn, error": {"set", "log.level", "loud"},
		"is too small for a message":             {"set", "limits.message-bytes", "200MiB"},
		"not a size":                             {"set", "disk.low-watermark", "much"},
		"single node":                            {"set", "min-in-sync", "1"},
	} {
		_, stderr, code := c.Run("", append([]string{"settings"}, args...)...)
		require.Equal(t, cli.ExitError, code, args)
		require.Contains(t, stderr, want, args)
	}
	table := c.OK("settings", "list")
	for _, s := range []string{"log.level", "min-in-sync", "limits.delivery-share", "scrub.rate", "pair", "node"} {
		require.Contains(t, table, s)
	}
	require.NotContains(t, table, "data.dir")
	c.OK("settings", "set", "limits.queues", "1")
	c.OK("queue", "create", "one")
	_, stderr, code := c.Run("", "queue", "create", "two")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "limits.queues")
}

// If a node does not respond, the values of the other nodes are printed, and the command reports the node.
func TestSettingsOfRemainingNodes(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	node := c.Addr
	for _, addr := range []string{"127.0.0.1:1," + node, node + ",127.0.0.1:1"} {
		c.Addr = addr
		for _, args := range [][]string{{"get", "log.level"}, {"list"}} {
			stdout, stderr, code := c.Run("", append([]string{"settings"}, args...)...)
			require.Equal(t, cli.ExitError, code, args)
			require.Contains(t, stdout, "info", args)
			require.Contains(t, stderr, "127.0.0.1:1", args)
		}
	}
}
