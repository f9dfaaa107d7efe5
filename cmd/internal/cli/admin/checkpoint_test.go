// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// A node that does not respond does not prevent the checkpoints of the other nodes in --addr.
func TestCheckpointOfRemainingNodes(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	node := c.Addr
	for _, addr := range []string{"127.0.0.1:1," + node, node + ",127.0.0.1:1"} {
		c.Addr = addr
		stdout, stderr, code := c.Run("", "checkpoint", "--output", "json")
		require.Equal(t, cli.ExitError, code, addr)
		require.Contains(t, stderr, "127.0.0.1:1")
		var written struct{ Address string }
		require.NoError(t, json.Unmarshal([]byte(stdout), &written), addr)
		require.Equal(t, node, written.Address)
	}
	require.Len(t, c.Lines("checkpoint", node), 1)
}
