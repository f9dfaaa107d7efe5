// SPDX-License-Identifier: Apache-2.0

package pair_test

import (
	"strings"
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/test/harness"
	"github.com/stretchr/testify/require"
)

// The nodes of a raft pair report the voter addresses, even if one node has not read the cluster record yet. Nodes
// of an etcd pair report no voters.
func TestVoterAddresses(t *testing.T) {
	p, err := harness.Start(t.Context(), harness.Options{Dir: t.TempDir(), Raft: true, Settings: harness.SmallNodes()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	c := clitest.CLI{T: t, Addr: strings.Join(p.Addresses(), ",")}
	c.OK("queue", "create", "q", "--timeout", "30s")
	require.Len(t, c.Lines("pair", "voters"), 3)

	_, alone := clitest.StartNodes(t, true) // has no record, like a node that has just started
	_, stderr, code := alone.Run("", "pair", "voters")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "cluster record")
	c.Addr = alone.Addr + "," + c.Addr
	require.Len(t, c.Lines("pair", "voters"), 3)

	_, other := clitest.StartNodes(t, false)
	_, stderr, code = other.Run("", "pair", "voters")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "is etcd;")
}
