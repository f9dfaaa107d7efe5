// SPDX-License-Identifier: Apache-2.0

package commands_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/certs"
)

// fails runs a command that must fail, and returns the last line of the error: the suggested command.
func fails(t *testing.T, c clitest.CLI, args ...string) string {
	t.Helper()
	_, stderr, code := c.Run("", args...)
	require.Equal(t, cli.ExitError, code, "%v: %s", args, stderr)
	lines := strings.Split(strings.TrimSpace(stderr), "\n")
	require.Greater(t, len(lines), 1, "%v suggests no command: %s", args, stderr)
	return lines[len(lines)-1]
}

// The most frequent errors suggest an existing command.
func TestNextCommand(t *testing.T) {
	p, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "orders")
	c.OK("publish", "orders", "one")
	c.OK("queue", "create", "small", "--max-messages", "1")
	_, stderr, code := c.Run("", "publish", "small", "one", "two", "three")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "not sent")
	dir := filepath.Join(p.Nodes[0].Dir, "data")
	empty := t.TempDir()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	gone := clitest.CLI{T: t, Addr: "127.0.0.1:1"}
	for _, want := range []struct {
		c    clitest.CLI
		args string
		next string
	}{
		{gone, "queue list", "lockstep doctor"},
		{gone, "status", "lockstep doctor"},
		{clitest.CLI{T: t, Addr: silent.Addr().String()}, "queue list --timeout 300ms", "lockstep status"},
		{c, "publish nowhere hello", "lockstep queue list"},
		{c, "queue show nowhere", "lockstep queue list"},
		{c, "consume orders -s nobody", "lockstep subscription list"},
		{c, "queue delete orders --if-empty", "lockstep queue show"},
		{c, "txn commit nothing", "lockstep txn list"},
		{c, "switchover", "lockstep status"},
		{c, "store backup", "--path"},
		{c, "store check --data-dir " + dir, "lockstep status"},
		{c, "store check --data-dir " + empty, "lockstep doctor"},
		{c, "store dump-meta --data-dir " + filepath.Join(empty, "none"), "lockstep doctor"},
	} {
		next := fails(t, want.c, strings.Fields(want.args)...)
		require.True(t, strings.HasPrefix(next, "Try `"), "%s: %s", want.args, next)
		require.Contains(t, next, want.next, want.args)
		for _, part := range strings.Split(next, "lockstep ")[1:] {
			name, _, _ := strings.Cut(part, "`")
			require.NoError(t, named(name), next)
		}
	}
}

// named returns an error if a text does not start with a command.
func named(text string) error {
	words := strings.Fields(text)
	_, _, err := newRoot().Find(words[:min(len(words), 2)])
	return err
}

// Errors for unauthenticated and unauthorized callers suggest a command.
func TestNextCommandOfAccess(t *testing.T) {
	ca, other := certs.New(t, "ours"), certs.New(t, "theirs")
	start := func(secure bool) clitest.CLI {
		cfg := config.Default()
		cfg.Node.Name, cfg.Data.Dir, cfg.Listen, cfg.Coordinator.Type = "a", t.TempDir(), "127.0.0.1:0",
			config.CoordinatorNone
		cfg.Disk.LowWatermark, cfg.Memory.Budget, cfg.WAL.SegmentBytes = 0, 32<<20, 4<<20
		cfg.Access.Mode = "deny"
		if secure {
			_, cfg.TLS.Cert, cfg.TLS.Key = ca.Issue(t, "a")
			cfg.TLS.CA = ca.File
		}
		ctx := t.Context()
		ready, done := make(chan node.Ready, 1), make(chan error, 1)
		go func() {
			done <- node.Run(ctx, cfg, zap.NewNop(), node.Options{OnReady: func(r node.Ready) { ready <- r }})
		}()
		t.Cleanup(func() { <-done })
		select {
		case r := <-ready:
			return clitest.CLI{T: t, Addr: r.Address}
		case err := <-done:
			done <- err
			require.NoError(t, err, "the node has stopped")
			return clitest.CLI{}
		}
	}
	plain, secured := start(false), start(true)
	require.Contains(t, fails(t, plain, "queue", "create", "q"), "access whoami")
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte("lst_wrong"), 0o600))
	require.Contains(t, fails(t, plain, "queue", "list", "--token-file", file), "lockstep login")
	for name, want := range map[string]struct {
		c     clitest.CLI
		flags []string
		// the command in the last line, and the text in the output of status
		next, text string
	}{
		"no TLS to TLS":  {secured, nil, "--tls-ca ca.pem", "requires TLS"},
		"other CA":       {secured, []string{"--tls-ca", other.File}, "lockstep cert show", "certificate was not accepted"},
		"no certificate": {secured, []string{"--tls-ca", ca.File}, "lockstep cert show", ""}, // it may be closed before
		"TLS to no TLS":  {plain, []string{"--tls-ca", ca.File}, "without --tls-ca", "does not use TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := append([]string{"queue", "list"}, want.flags...)
			require.Contains(t, fails(t, want.c, args...), want.next)
			args = append([]string{"status", "--timeout", "1m"}, want.flags...)
			require.Contains(t, fails(t, want.c, args...), want.next)
			_, stderr, _ := want.c.Run("", args...)
			require.Contains(t, stderr, "responds: the ")
			require.Contains(t, stderr, want.text)
			require.NotContains(t, stderr, "lockstep dev")
		})
	}
}
