// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

// An etcd without space does not block the writes of a pair while no role changes. If the standby fails, the active
// cannot remove it from the in-sync set. The active then waits, reports the reason, and continues when etcd accepts
// writes again.
//
// The test uses real sockets, because only a real etcd has the quota and the alarm.
func TestEtcdOutOfSpace(t *testing.T) {
	etcd, err := embedded.Start(t.Context(),
		embedded.Options{Dir: t.TempDir(), UnsafeNoFsync: true, QuotaBytes: 2 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	active, standby := startPair(t, etcd)
	active.createQueue("q")

	operator, err := clientv3.New(clientv3.Config{Endpoints: etcd.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, operator.Close()) })
	var last int64
	require.Eventually(t, func() bool {
		r, err := operator.Put(t.Context(), "/other", strings.Repeat("x", 256<<10))
		if err == nil {
			last = r.Header.Revision
		}
		return err != nil
	}, testTimeout, time.Millisecond)
	require.Eventually(t, func() bool {
		r, err := operator.AlarmList(t.Context())
		return err == nil && len(r.Alarms) > 0
	}, testTimeout, 10*time.Millisecond)
	active.publish("q", "while etcd is full")

	standby.stop()
	active.waitFor(pb.Role_ROLE_BLOCKED)
	require.Eventually(t, func() bool { return strings.Contains(active.status().GetReason(), "alarm NOSPACE") },
		testTimeout, 10*time.Millisecond,
		"the status contains the action")

	// A restarted node has a new process generation, which cannot be written to the cluster record. Therefore the
	// node does not become in sync. It reports the reason.
	restarted := start(t, standby.config)
	require.Eventually(t, func() bool { return hasCoordinatorErrors(restarted) && hasCoordinatorErrors(active) },
		testTimeout,
		10*time.Millisecond, "both nodes report coordinator errors")
	require.Equal(t, pb.Role_ROLE_BLOCKED, active.role())

	_, err = operator.Compact(t.Context(), last, clientv3.WithCompactPhysical())
	require.NoError(t, err)
	_, err = operator.Defragment(t.Context(), etcd.Address())
	require.NoError(t, err)
	defer func() {
		if t.Failed() {
			for _, n := range []*testNode{active, restarted} {
				t.Logf("%v", n.status())
			}
			r, err := operator.AlarmList(context.Background())
			t.Logf("%v %v", r, err)
		}
	}()
	// A write that etcd refused before the compaction can raise the alarm again after it was disarmed, so disarm it
	// repeatedly.
	require.Eventually(t, func() bool {
		_, err := operator.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
		return err == nil && active.role() == pb.Role_ROLE_ACTIVE
	}, testTimeout, 10*time.Millisecond)
	active.publish("q", "after")
	require.NotContains(t, active.status().GetReason(), "NOSPACE")
}

// hasCoordinatorErrors reports whether a node reports coordinator errors because etcd has no space.
func hasCoordinatorErrors(n *testNode) bool {
	return slices.ContainsFunc(n.status().GetConditions(), func(c *pb.Condition) bool {
		return c.GetKind() == string(conditions.CoordinatorErrors) && strings.Contains(c.GetDetails(), "NOSPACE")
	})
}
