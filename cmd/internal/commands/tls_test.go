// SPDX-License-Identifier: Apache-2.0

package commands_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/certs"
)

// The command line presents a client certificate that is set by flags or by the environment.
func TestCommandsOverTLS(t *testing.T) {
	ca := certs.New(t, "ours")
	cfg := config.Default()
	cfg.Node.Name, cfg.Data.Dir, cfg.Listen, cfg.Coordinator.Type = "a", t.TempDir(), "127.0.0.1:0",
		config.CoordinatorNone
	cfg.Disk.LowWatermark, cfg.Memory.Budget, cfg.WAL.SegmentBytes = 0, 32<<20, 4<<20
	_, cfg.TLS.Cert, cfg.TLS.Key = ca.Issue(t, "a")
	cfg.TLS.CA = ca.File
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan node.Ready, 1), make(chan error, 1)
	go func() {
		done <- node.Run(ctx, cfg, zap.NewNop(), node.Options{OnReady: func(r node.Ready) { ready <- r }})
	}()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	var c clitest.CLI
	select {
	case r := <-ready:
		c = clitest.CLI{T: t, Addr: r.Address}
	case <-time.After(20 * time.Second):
		require.FailNow(t, "the node is not ready")
	}

	_, cert, key := ca.Issue(t, "operator")
	c.OK("queue", "create", "q", "--tls-ca", ca.File, "--tls-cert", cert, "--tls-key", key)
	c.OK("publish", "q", "hello", "--tls-ca", ca.File, "--tls-cert", cert, "--tls-key", key)
	_, _, code := c.Run("", "status", "--timeout", "1s")
	require.Equal(t, cli.ExitError, code, "without TLS")
	_, stderr, code := c.Run("", "status", "--tls-cert", cert)
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, stderr, tlsfiles.ErrIncomplete.Error())
}

// The certificates created by `cert init` are sufficient for a node and the command line, without other names or files.
func TestCertificatesFromInit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	clitest.CLI{T: t}.OK("cert", "init", dir)
	at := func(name string) string { return filepath.Join(dir, name) }
	cfg := config.Default()
	cfg.Node.Name, cfg.Data.Dir, cfg.Listen, cfg.Coordinator.Type = "a", t.TempDir(), "127.0.0.1:0",
		config.CoordinatorNone
	cfg.Disk.LowWatermark, cfg.Memory.Budget, cfg.WAL.SegmentBytes = 0, 32<<20, 4<<20
	cfg.TLS.CA, cfg.TLS.Cert, cfg.TLS.Key = at("ca.pem"), at("node-a.pem"), at("node-a-key.pem")
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan node.Ready, 1), make(chan error, 1)
	go func() {
		done <- node.Run(ctx, cfg, zap.NewNop(), node.Options{OnReady: func(r node.Ready) { ready <- r }})
	}()
	t.Cleanup(func() { cancel(); require.NoError(t, <-done) })
	var c clitest.CLI
	select {
	case r := <-ready:
		c = clitest.CLI{T: t, Addr: r.Address}
	case err := <-done:
		done <- err
		require.NoError(t, err)
	case <-time.After(20 * time.Second):
		require.FailNow(t, "the node is not ready")
	}
	secure := []string{"--tls-ca", at("ca.pem"), "--tls-cert", at("client.pem"), "--tls-key", at("client-key.pem")}
	c.OK(append([]string{"queue", "create", "q"}, secure...)...)
	shown := c.Lines(append([]string{"status"}, secure...)...)[0]["nodes"].([]any)[0].(map[string]any)
	require.NotEmpty(t, shown["certificates"])
	require.Contains(t, c.OK("cert", "show", c.Addr), "CN=node-a")
}

// A node or a witness that listens on a non-local address requires TLS, or an explicit setting to run without it.
func TestInsecure(t *testing.T) {
	c := clitest.CLI{T: t}
	for _, args := range [][]string{
		{"serve", "--standalone", "--data-dir", t.TempDir(), "--listen", "0.0.0.0:0"},
		{
			"serve", "--standalone", "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--metrics-listen",
			"0.0.0.0:0",
		},
		{
			"witness", "--data-dir", t.TempDir(), "--listen", "10.0.0.3:7430", "--voters",
			"10.0.0.1:1,10.0.0.2:1,10.0.0.3:7430",
		},
	} {
		_, stderr, code := c.Run("", args...)
		require.Equal(t, cli.ExitUsage, code, "%v: %s", args, stderr)
		require.Contains(t, stderr, "TLS", "%v", args)
		require.Contains(t, stderr, "--insecure", "%v", args)
	}
}
