// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/conditions"
)

// says waits until the reason of a node contains all of this.
func (n *testNode) says(texts ...string) {
	n.t.Helper()
	var reason string
	defer func() {
		if n.t.Failed() {
			n.t.Logf("node %s says: %s", n.config.Node.Name, reason)
		}
	}()
	require.Eventually(n.t, func() bool {
		reason = n.status().GetReason()
		for _, text := range texts {
			if !strings.Contains(reason, text) {
				return false
			}
		}
		return true
	}, patience, 5*time.Millisecond, "%s should say %q", n.config.Node.Name, texts)
	require.NotContains(n.t, reason, "--force")
}

// TestThirdNode: a node that was given the prefix of a healthy pair is told that the pair has its two nodes, and so is
// an operator who looks at the active. Neither advises to force anything. When one of the two has left, the third takes
// that one's place.
func TestThirdNode(t *testing.T) { simulated(t, testThirdNode) }

func testThirdNode(t *testing.T) {
	etcd := startEtcd(t)
	a, b := startPair(t, etcd)
	c := start(t, settingsOfPair(t, "c", etcd))
	c.says("the pair has its two nodes already", "a ("+a.ready.Address+")", "b ("+b.ready.Address+")",
		"stop that one first")
	a.says("the pair has its two nodes already", "c ("+c.ready.Address+")")
	require.Equal(t, pb.Role_ROLE_ACTIVE, a.role())
	for _, n := range []*testNode{a, b} {
		n.tells(conditions.ForeignNode, "", true)
		require.Contains(t, n.told(conditions.ForeignNode, "").GetDetails(), "node c at "+c.ready.Address)
	}

	b.stop()
	c.waitFor(pb.Role_ROLE_STANDBY)
	require.Eventually(t, func() bool { return a.status().GetReason() == "" }, patience, 5*time.Millisecond)
}

// TestWipedActive: the data directory of the only node in sync is gone, and an empty node starts in its place. Neither
// node may act, and each says what fits its own place; the force that the other one then needs is refused for as long
// as the empty node runs, with the reason.
func TestWipedActive(t *testing.T) { simulated(t, testWipedActive) }

func testWipedActive(t *testing.T) {
	etcd := startEtcd(t)
	a, b := startPair(t, etcd)
	a.createQueue("q")
	b.stop()
	a.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	a.publish("q", "only here")
	a.stop()

	wiped := a.config
	wiped.Data.Dir, wiped.Listen = t.TempDir(), a.ready.Address
	empty := start(t, wiped)
	older := start(t, b.config)
	empty.says("data directory was wiped or replaced", "Bring that directory back", "node b (", "never here")
	older.says("a ("+a.ready.Address+")", "data directory was wiped or replaced", "stop the new node",
		"lockstep failover --dry-run")

	_, err := older.admin.ForceFailover(t.Context(), &pb.ForceFailoverRequest{})
	require.ErrorContains(t, err, "not the node that held everything")
	require.ErrorContains(t, err, "stop the new node there and try again")
	require.NotContains(t, err.Error(), "needs no force")
	empty.stop()
	plan, err := older.admin.ForceFailover(t.Context(), &pb.ForceFailoverRequest{})
	require.NoError(t, err)
	require.Equal(t, a.ready.NodeID, plan.GetLostNodeId())
}
