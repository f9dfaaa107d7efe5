// SPDX-License-Identifier: Apache-2.0

package pairstatus

import (
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/stretchr/testify/require"
)

// For a node that does not respond, a plan uses the name that the other node reports.
func TestNamesOfUnreachableNodes(t *testing.T) {
	s := Status{
		Nodes: []Node{{Name: "a", NodeID: "1"}, {Error: "refused"}},
		names: map[string]string{"1": "a", "2": "b"},
	}
	require.Equal(t, "b", s.NodeName("2"))
	require.Equal(t, "3", s.NodeName("3"))
	require.Equal(t, "b", progress.NewPlan(&pb.Plan{Node: "2"}, s.NodeName).Node)
}

// The status table shows that a standby rewrites its page file. The JSON output contains the actual role and the
// operation separately.
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
