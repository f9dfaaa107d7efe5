// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// tryPublish publishes a message and ignores the result, because the node's disk is slow.
func (n *testNode) tryPublish(queue, body string) {
	_, _ = n.queues.Publish(n.t.Context(), &pb.PublishRequest{
		Queue: queue, Messages: []*pb.Message{{Body: []byte(body)}},
	})
}

// ofPairAndAlone runs a test with the settings of a node that belongs to a pair, and with those of a standalone
// node.
func ofPairAndAlone(t *testing.T, test func(t *testing.T, c config.Config)) {
	t.Helper()
	t.Run("pair", func(t *testing.T) {
		simulated(t, func(t *testing.T) { test(t, settingsOfPair(t, "a", startEtcd(t))) })
	})
	t.Run("alone", func(t *testing.T) { simulated(t, func(t *testing.T) { test(t, settings(t, "a")) }) })
}

// A disk with slow syncs is reported while data is written, until the syncs are fast again.
func TestConditionSyncSlow(t *testing.T) {
	ofPairAndAlone(t, syncSlow)
}

func syncSlow(t *testing.T, c config.Config) {
	disk := faultfs.New(diskOf(t))
	n := startOn(t, c, disk)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	n.createQueue("q")
	n.publish("q", "quick")
	require.Nil(t, n.condition(conditions.SyncSlow, "a"))

	disk.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpSync {
			<-time.After(150 * time.Millisecond) // simulates a slow disk
		}
		return nil
	})
	require.Eventually(t, func() bool {
		n.publish("q", "slow")
		return n.condition(conditions.SyncSlow, "a") != nil
	}, testTimeout, time.Millisecond)
	require.Contains(t, n.condition(conditions.SyncSlow, "a").GetDetails(), "ms")

	disk.SetHook(nil)
	require.Eventually(t, func() bool {
		n.publish("q", "quick")
		return n.condition(conditions.SyncSlow, "a") == nil
	}, testTimeout, time.Millisecond)
}

// A sync that hangs is reported after disk.stall-timeout, until the sync returns.
func TestConditionDiskStalled(t *testing.T) { ofPairAndAlone(t, diskStalled) }

func diskStalled(t *testing.T, c config.Config) {
	disk := faultfs.New(diskOf(t))
	c.Disk.StallTimeout = config.Duration(200 * time.Millisecond)
	n := startOn(t, c, disk)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	n.createQueue("q")

	hang := make(chan struct{})
	release := sync.OnceFunc(func() { close(hang) })
	defer release()
	disk.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpSync {
			<-hang
		}
		return nil
	})
	var publishing sync.WaitGroup
	publishing.Go(func() { n.tryPublish("q", "held up") })
	n.waitCondition(conditions.DiskStalled, "a", true)
	disk.SetHook(nil)
	release()
	n.waitCondition(conditions.DiskStalled, "a", false)
	publishing.Wait()
}

// GetStatus returns a status even if the archive cannot be read.
func TestStatusWithoutItsArchive(t *testing.T) { simulated(t, testStatusWithoutItsArchive) }

func testStatusWithoutItsArchive(t *testing.T) {
	c := settingsOfPair(t, "a", startEtcd(t))
	c.WAL.Archive = filepath.Join(t.TempDir(), "archive")
	n := start(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	n.createQueue("q")
	n.publish("q", "archived")
	// Replace the directory of the archive with a file.
	require.NoError(t, os.Rename(c.WAL.Archive, c.WAL.Archive+".away"))
	require.NoError(t, os.WriteFile(c.WAL.Archive, nil, 0o600))
	s, err := n.admin.GetStatus(t.Context(), &pb.GetStatusRequest{})
	require.NoError(t, err)
	require.Equal(t, pb.Role_ROLE_ACTIVE_ALONE, s.GetRole())
}

// A failed switchover is reported for the node that received the request, until a switchover succeeds.
func TestConditionSwitchoverFailed(t *testing.T) { simulated(t, testConditionSwitchoverFailed) }

func testConditionSwitchoverFailed(t *testing.T) {
	etcd := startEtcd(t)
	a := start(t, settingsOfPair(t, "a", etcd))
	a.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err := a.admin.Switchover(t.Context(), &pb.SwitchoverRequest{})
	require.Error(t, err, "there is no standby")
	a.waitCondition(conditions.SwitchoverFailed, "a", true)
	require.NotEmpty(t, a.condition(conditions.SwitchoverFailed, "a").GetDetails())

	b := start(t, settingsOfPair(t, "b", etcd))
	b.waitFor(pb.Role_ROLE_STANDBY)
	a.waitFor(pb.Role_ROLE_ACTIVE)
	b.waitCondition(conditions.SwitchoverFailed, "a", true)
	_, err = a.admin.Switchover(t.Context(), &pb.SwitchoverRequest{})
	require.NoError(t, err)
	for _, n := range []*testNode{a, b} {
		n.waitCondition(conditions.SwitchoverFailed, "a", false)
	}
}
