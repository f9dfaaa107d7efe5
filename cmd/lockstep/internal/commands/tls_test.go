// SPDX-License-Identifier: Apache-2.0

package commands_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/clitest"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/certs"
)

// The command line shows a certificate if it is given one, by flags or by the environment.
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
	require.Contains(t, stderr, "cert and key go together")
}
