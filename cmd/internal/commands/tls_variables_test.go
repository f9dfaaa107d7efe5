// SPDX-License-Identifier: Apache-2.0

package commands_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/server/config"
)

// An environment variable configures either the commands or a node, never both.
func TestTLSVariables(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	missing := filepath.Join(t.TempDir(), "missing.pem")
	for _, name := range []string{"CA", "CERT", "KEY"} {
		of := func(prefix string) clitest.CLI {
			return clitest.CLI{T: t, Addr: c.Addr, Env: map[string]string{prefix + name: missing}}
		}
		of("LOCKSTEP_TLS_").OK("queue", "list")
		_, stderr, code := of("LOCKSTEP_CLIENT_TLS_").Run("", "queue", "list")
		require.NotEqual(t, cli.ExitOK, code, "%s: %s", name, stderr)
	}

	own := []string{"LOCKSTEP_CLIENT_TLS_CA=ca", "LOCKSTEP_CLIENT_TLS_CERT=cert", "LOCKSTEP_CLIENT_TLS_KEY=key"}
	settings := []string{"LOCKSTEP_DATA_DIR=data", "LOCKSTEP_LISTEN=127.0.0.1:0", "LOCKSTEP_COORDINATOR_TYPE=none"}
	cfg, err := config.Load("", append(own, settings...), nil)
	require.NoError(t, err)
	require.Empty(t, cfg.Warnings)
	require.False(t, cfg.TLS.On())
	require.Empty(t, cfg.TLS.CA)
}
