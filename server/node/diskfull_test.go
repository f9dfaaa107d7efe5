// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// A standby with a nearly full disk disconnects from the active. The active continues to serve clients and
// reports the reason. The standby can be restarted. It reconnects when its disk has space.
func TestStandbyDisconnectsBeforeDiskFull(t *testing.T) {
	simulated(t, testStandbyDisconnectsBeforeDiskFull)
}

func testStandbyDisconnectsBeforeDiskFull(t *testing.T) {
	etcd := startEtcd(t)
	a := start(t, settingsOfPair(t, "a", etcd))
	a.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	disk := memfs.New()
	small := settingsOfPair(t, "b", etcd)
	small.Data.Dir = "/data"
	require.NoError(t, disk.MkdirAll("/data", 0o700))
	small.WAL.SegmentBytes, small.WAL.KeepBytes, small.Disk.LowWatermark = 1<<20, 1<<20, 16<<20
	b := startOn(t, small, disk)
	b.waitFor(pb.Role_ROLE_STANDBY)
	a.waitFor(pb.Role_ROLE_ACTIVE)
	a.createQueue("q")
	setFree := func(freeBytes int64) {
		u, err := disk.Usage("/data")
		require.NoError(t, err)
		disk.SetCapacity(int64(u.TotalBytes-u.AvailableBytes) + freeBytes)
	}
	setFree(32 << 20)
	body := strings.Repeat("x", 1<<20)
	for range 40 { // more messages than fit
		a.publish("q", body)
	}
	a.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	b.waitFor(pb.Role_ROLE_CATCHING_UP)
	require.Eventually(t, func() bool { // b may first report a lost connection
		return strings.Contains(b.status().GetReason(), "is nearly full")
	}, 10*time.Second, 5*time.Millisecond)
	for _, n := range []*testNode{a, b} {
		n.waitCondition(conditions.ReplicationStopped, "b", true)
		n.waitCondition(conditions.OneCopyOnly, "", true)
	}
	require.Nil(t, a.condition(conditions.PublishesRefused, ""), "the active has space")
	free := b.status().GetStore().GetDiskFree()
	require.Greater(t, free, uint64(1<<20), "the standby disconnected before its disk was full")
	b.stop()
	b = startOn(t, small, disk)
	b.waitFor(pb.Role_ROLE_CATCHING_UP)
	require.Never(t, func() bool { return b.status().GetStandby() != nil || b.role() == pb.Role_ROLE_STANDBY },
		300*time.Millisecond, 10*time.Millisecond)

	setFree(1 << 30)
	b.waitFor(pb.Role_ROLE_STANDBY)
	a.waitFor(pb.Role_ROLE_ACTIVE)
	a.waitCondition(conditions.ReplicationStopped, "b", false)
	a.waitCondition(conditions.OneCopyOnly, "", false)
	require.Eventually(t, func() bool { // the standby applies the transactions later
		return a.status().GetStore().GetMessages() == b.status().GetStore().GetMessages()
	}, testTimeout, 10*time.Millisecond)
}
