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
	require.Contains(t, c.OK("access", "whoami"), "all rights: no access rules exist")
	require.Contains(t, c.OK("access", "test", "publish", "orders.eu"), "all clients may publish orders.eu")

	_, stderr, code := c.Run("", "access", "grant", "alice", "publish", "--queue", "orders.*")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "would lose the operate right")
	require.Contains(t, stderr, "--lock-out")

	made := c.Lines("access", "token", "create", "admin", "--principal", "admin", "--group", "ops")[0]
	secret, _ := made["token"].(string)
	require.True(t, strings.HasPrefix(secret, "lsk_"))
	require.NotContains(t, c.OK("access", "token", "list"), secret)
	require.Contains(t, c.OK("access", "token", "list"), "admin")
	require.Contains(t, c.OK("access", "role", "put", "operator", "operate,audit"),
		"role \"operator\" grants operate, audit")
	require.Contains(t, c.OK("access", "role", "list"), "operate, audit")
	require.Contains(t, c.OK("access", "quota", "put", "team-a/*", "--queues", "3", "--bytes", "1MiB"), "set the quota of")
	require.Contains(t, c.OK("access", "quota", "list"), "0 of 3")
	require.Contains(t, c.OK("access", "quota", "delete", "team-a/*"), "deleted ")
	require.Contains(t, c.OK("access", "grant", "anonymous", "--role", "operator"), "anonymous has role operator")
	require.Contains(t, c.OK("access", "grant", "alice", "publish,consume", "--queue", "orders.*"),
		`alice has publish, consume on queues "orders.*"`)
	require.Contains(t, c.OK("access", "test", "publish", "orders.eu"), "orders.*")
	require.Contains(t, c.OK("access", "test", "publish", "orders.eu", "--principal", "bob"), "no: bob may not publish")
	require.Contains(t, c.OK("access", "revoke", "alice", "consume", "--queue", "orders.*"), "alice still has publish")
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
	require.Contains(t, stderr, "not a data directory")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "page.db"), nil, 0o600))
	_, stderr, code = c.Run("", "access", "reset", "--data-dir", dir)
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, stderr, "--yes")
	require.Contains(t, c.OK("access", "reset", "--data-dir", dir, "--yes"), "when it becomes active")
	require.FileExists(t, filepath.Join(dir, "access.reset"))
}
