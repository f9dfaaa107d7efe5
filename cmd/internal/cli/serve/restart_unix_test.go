// SPDX-License-Identifier: Apache-2.0

//go:build unix

package serve

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// After a restart, listen is read from the configuration again. With port 0, the node keeps its port.
func TestRestartArgs(t *testing.T) {
	args := []string{"lockstep", "serve", "--config", "node.yaml"}
	for listen, address := range map[string]string{
		"127.0.0.1:7420": "127.0.0.1:7420", ":7420": "[::]:7420", "node-a:7420": "10.0.0.1:7420",
	} {
		require.Equal(t, args, restartArgs(args, listen, address), listen)
	}
	for listen, want := range map[string]string{
		"127.0.0.1:0": "127.0.0.1:40001", "localhost:0": "localhost:40001", ":0": ":40001", "[::1]:0": "[::1]:40001",
	} {
		next := restartArgs(args, listen, "127.0.0.1:40001")
		require.Equal(t, append(args[:len(args):len(args)], "--listen="+want), next, listen)
		require.Equal(t, next, restartArgs(next, want, "127.0.0.1:40001"), "another restart")
	}
}
