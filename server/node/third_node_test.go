// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

// reports waits until the reason in the node's status contains all texts.
func (n *testNode) reports(texts ...string) {
	n.t.Helper()
	var reason string
	defer func() {
		if n.t.Failed() {
			n.t.Logf("node %s reports: %s", n.config.Node.Name, reason)
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
	}, testTimeout, 5*time.Millisecond, "%s should report %q", n.config.Node.Name, texts)
	require.NotContains(n.t, reason, "--force")
}

// If a third node is started with the prefix of a complete pair, it reports that the pair has two nodes, and the
// active reports the third node. Neither recommends a forced failover. When one of the two nodes has stopped, the
// third node replaces it.
func TestThirdNode(t *testing.T) { simulated(t, testThirdNode) }

func testThirdNode(t *testing.T) {
	etcd := startEtcd(t)
	a, b := startPair(t, etcd)
	c := start(t, settingsOfPair(t, "c", etcd))
	c.reports("the pair already has two nodes", "a ("+a.ready.Address+")", "b ("+b.ready.Address+")",
		"stop that node first")
	a.reports("a third node", "c ("+c.ready.Address+")")
	require.Equal(t, pb.Role_ROLE_ACTIVE, a.role())
	for _, n := range []*testNode{a, b} {
		n.waitCondition(conditions.ForeignNode, "", true)
		require.Contains(t, n.condition(conditions.ForeignNode, "").GetDetails(), "node c at "+c.ready.Address)
	}

	b.stop()
	c.waitFor(pb.Role_ROLE_STANDBY)
	require.Eventually(t, func() bool { return a.status().GetReason() == "" }, testTimeout, 5*time.Millisecond)
}

// The data directory of the only in-sync node is lost, and an empty node starts in its place. Neither node becomes
// active, and each reports a suitable action. While the empty node runs, a forced failover to the other node is
// refused.
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
	empty.reports("data directory was wiped or replaced", "Restore that directory", "node b (", "never on this node")
	older.reports("a ("+a.ready.Address+")", "data directory was wiped or replaced", "stop the new node",
		"lockstep failover --dry-run")

	_, err := older.admin.ForceFailover(t.Context(), &pb.ForceFailoverRequest{})
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "%v", err)
	empty.stop()
	plan, err := older.admin.ForceFailover(t.Context(), &pb.ForceFailoverRequest{})
	require.NoError(t, err)
	require.Equal(t, a.ready.NodeID, plan.GetLostNodeId())
}
