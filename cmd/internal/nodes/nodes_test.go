// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/rolling"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/stretchr/testify/require"
)

// TestNamesOfAbsentNodes: a plan names a node that does not answer by the name that the other one knows.
func TestNamesOfAbsentNodes(t *testing.T) {
	s := Status{
		Nodes: []Node{{Name: "a", NodeID: "1"}, {Error: "refused"}},
		names: map[string]string{"1": "a", "2": "b"},
	}
	require.Equal(t, "b", s.NodeName("2"))
	require.Equal(t, "3", s.NodeName("3"))
	require.Equal(t, "b", rolling.NewPlan(&pb.Plan{Node: "2"}, s.NodeName).Node)
}

// TestMaintainingRole: people see that a standby rewrites; programs get the role that counts, and what is done, apart.
func TestMaintainingRole(t *testing.T) {
	for operation, want := range map[string]string{
		"": "standby", "scan": "standby", "backup": "standby",
		"rewrite": "maintaining (standby)",
	} {
		n := Node{Role: "standby"}
		if operation != "" {
			n.Maintenance = &Maintenance{Operation: operation, Phase: "copy", DoneBytes: 1, TotalBytes: 4}
			require.Equal(t, operation+": copy 25%", n.Maintenance.String())
		}
		require.Equal(t, want, n.ShownRole())
		require.Equal(t, "standby", n.Role)
	}
}
