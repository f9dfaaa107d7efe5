// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// Rules are granted, listed, tested and revoked, with a token created by the test.
func TestAccess(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	require.Contains(t, c.OK("access", "list"), "access rules")
	require.Equal(t, true, c.Lines("access", "whoami")[0]["open"])
	require.Equal(t, true, c.Lines("access", "test", "publish", "orders.eu")[0]["open"])

	_, stderr, code := c.Run("", "access", "grant", "alice", "publish", "--queue", "orders.*")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "operate right")
	require.Contains(t, stderr, "--lock-out")

	made := c.Lines("access", "token", "create", "admin", "--principal", "admin", "--group", "ops")[0]
	secret, _ := made["token"].(string)
	require.True(t, strings.HasPrefix(secret, "lsk_"))
	require.NotContains(t, c.OK("access", "token", "list"), secret)
	require.Contains(t, c.OK("access", "token", "list"), "admin")
	require.Equal(t, map[string]any{"name": "operator", "rights": []any{"operate", "audit"}},
		c.Lines("access", "role", "put", "operator", "operate,audit")[0])
	require.Contains(t, c.OK("access", "role", "list"), "operate, audit")
	quota := c.Lines("access", "quota", "put", "team-a/*", "--queues", "3", "--bytes", "1MiB")[0]
	require.Equal(t, "team-a/*", quota["queue"])
	require.InDelta(t, 1<<20, quota["bytes"], 0)
	require.Contains(t, c.OK("access", "quota", "list"), "0 of 3")
	require.Contains(t, c.OK("access", "quota", "delete", "team-a/*"), "deleted ")
	require.Equal(t, []any{"operator"}, c.Lines("access", "grant", "anonymous", "--role", "operator")[0]["roles"])
	rule := c.Lines("access", "grant", "alice", "publish,consume", "--queue", "orders.*")[0]
	require.Equal(t, "orders.*", rule["queue"])
	require.Equal(t, []any{"publish", "consume"}, rule["rights"])
	require.Contains(t, c.OK("access", "test", "publish", "orders.eu"), "orders.*")
	require.Equal(t, false, c.Lines("access", "test", "publish", "orders.eu", "--principal", "bob")[0]["allowed"])
	require.Equal(t, []any{"publish"}, c.Lines("access", "revoke", "alice", "consume", "--queue", "orders.*")[0]["rights"])
	require.Contains(t, c.OK("access", "revoke", "alice", "--queue", "orders.*"), "deleted ")
	_, stderr, code = c.Run("", "publish", "orders.eu", "x")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "permission denied")
	_, stderr, code = c.Run("", "access", "role", "delete", "operator")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, `principal "anonymous"`)
	require.Contains(t, c.OK("access", "token", "revoke", "admin"), "deleted ")

	for _, args := range [][]string{
		{"access", "grant"},
		{"access", "grant", "alice", "own"},
		{"access", "grant", "alice", "Publish", "--queue", "q"},
		{"access", "test", "publish,consume", "q"},
		{"access", "token", "create", "x"},
		{"access", "quota", "put", "x", "--bytes", "much"},
		{"access", "reset"},
		{"access", "nonsense"},
	} {
		_, stderr, code := c.Run("", args...)
		require.Equal(t, cli.ExitUsage, code, "%v: %s", args, stderr)
	}
}

// reset creates a marker in the directory of a stopped node, and rejects other directories.
func TestReset(t *testing.T) {
	c := clitest.CLI{T: t}
	dir := t.TempDir()
	_, stderr, code := c.Run("", "access", "reset", "--data-dir", dir, "--yes")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, dir)
	require.Contains(t, stderr, "lockstep doctor", "the hint for datadir.ErrNone")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "page.db"), nil, 0o600))
	_, stderr, code = c.Run("", "access", "reset", "--data-dir", dir)
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, stderr, "--yes")
	marker := filepath.Join(dir, "access.reset")
	require.Equal(t, marker, c.Lines("access", "reset", "--data-dir", dir, "--yes")[0]["marker"])
	require.FileExists(t, marker)
}
