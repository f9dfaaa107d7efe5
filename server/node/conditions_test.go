// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

// condition returns a condition in the status of a node, or nil. node is the name of the node that is affected;
// it is empty for the pair.
func (n *testNode) condition(k conditions.Kind, node string) *pb.Condition {
	for _, c := range n.status().GetConditions() {
		if c.GetKind() == string(k) && c.GetNodeName() == node {
			return c
		}
	}
	return nil
}

// waitCondition waits until a node reports a condition or, if want is false, no longer reports it.
func (n *testNode) waitCondition(k conditions.Kind, node string, want bool) {
	n.t.Helper()
	require.Eventually(n.t, func() bool { return (n.condition(k, node) != nil) == want }, testTimeout, 10*time.Millisecond,
		"%s on %q, wanted: %v", k, node, want)
}

// While only one node is in sync, the pair reports one-copy-only, and the health service reports NOT_SERVING for
// alarms.
func TestConditionsOfOneNode(t *testing.T) { simulated(t, testConditionsOfOneNode) }

func testConditionsOfOneNode(t *testing.T) {
	etcd := startEtcd(t)
	a := start(t, settingsOfPair(t, "a", etcd))
	a.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	a.waitCondition(conditions.OneCopyOnly, "", true)
	c := a.condition(conditions.OneCopyOnly, "")
	require.Equal(t, pb.Severity_SEVERITY_CRITICAL, c.GetSeverity())
	require.Contains(t, c.GetDetails(), "node: a")
	require.NotEmpty(t, c.GetCause())
	require.NotEmpty(t, c.GetAction())
	require.Equal(t, a.status().GetNode().GetNodeId(), c.GetReportedBy())
	require.Equal(t, "one-copy-only", a.status().GetAlarms()[0].GetKind(), "clients that only support alarms receive it")
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, a.health(server.AlarmService))

	b := start(t, settingsOfPair(t, "b", etcd))
	b.waitFor(pb.Role_ROLE_STANDBY)
	for _, n := range []*testNode{a, b} {
		n.waitCondition(conditions.OneCopyOnly, "", false)
		require.Empty(t, n.status().GetAlarms())
		require.Equal(t, healthpb.HealthCheckResponse_SERVING, n.health(server.AlarmService))
	}
	b.stop()
	a.waitCondition(conditions.OneCopyOnly, "", true)
}

// Both nodes report the conditions of each node.
func TestConditionsOfTheOtherNode(t *testing.T) { simulated(t, testConditionsOfTheOtherNode) }

func testConditionsOfTheOtherNode(t *testing.T) {
	etcd := startEtcd(t)
	a := start(t, settingsOfPair(t, "a", etcd))
	a.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	full := settingsOfPair(t, "b", etcd)
	full.Disk.LowWatermark = config.Size(1) << 60
	full.Sync = "off"
	b := start(t, full)
	a.waitCondition(conditions.DiskLow, "b", true)
	b.waitCondition(conditions.DiskLow, "b", true)
	a.waitCondition(conditions.SyncOff, "b", true)
	c := a.condition(conditions.DiskLow, "b")
	require.Equal(t, b.status().GetNode().GetNodeId(), c.GetReportedBy())
	require.Contains(t, c.GetDetails(), "disk.low-watermark")
	require.Nil(t, a.condition(conditions.DiskLow, "a"))
	require.Nil(t, a.condition(conditions.PublishesRefused, ""), "the active has space")
	require.Positive(t, b.status().GetDiskLowWatermark())
	b.stop()
	a.waitCondition(conditions.DiskLow, "b", false) // neither node reports the condition
}

// A standby that cannot reach the active reports active-unreachable.
func TestConditionsWithoutTheActive(t *testing.T) { simulated(t, testConditionsWithoutTheActive) }

func testConditionsWithoutTheActive(t *testing.T) {
	etcd := startEtcd(t)
	a, b := startPair(t, etcd)
	_, err := b.admin.SetPaused(t.Context(), &pb.SetPausedRequest{Paused: true, Reason: "test"})
	require.NoError(t, err)
	b.waitCondition(conditions.Paused, "", true)
	require.Contains(t, b.condition(conditions.Paused, "").GetDetails(), "test")
	a.stop()
	b.waitCondition(conditions.ActiveUnreachable, "b", true)
	require.Equal(t, pb.Severity_SEVERITY_CRITICAL, b.condition(conditions.ActiveUnreachable, "b").GetSeverity())
}
