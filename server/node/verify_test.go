// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// changeDigest changes the digest of a queue in the checkpoint of a stopped node.
func changeDigest(t *testing.T, dir string, queue uint64) {
	t.Helper()
	editIndex(t, dir, func(from *tree.Tree, edit *tree.Edit) {
		key := binary.BigEndian.AppendUint64([]byte{'q'}, queue)
		value, ok, err := from.View().Get(key)
		require.NoError(t, err)
		require.True(t, ok)
		value = append([]byte{}, value...)
		value[len(value)-1] ^= 1
		require.NoError(t, edit.Put(key, value))
	})
}

// addJob adds an unreadable job to the checkpoint of a stopped node. The rolling digests do not change.
func addJob(t *testing.T, dir, name string) {
	t.Helper()
	editIndex(t, dir, func(_ *tree.Tree, edit *tree.Edit) {
		require.NoError(t, edit.Put(append([]byte{'k'}, "maintenance/job/"+name...), []byte{1}))
	})
}

// editIndex changes the index in the checkpoint of a stopped node. The checksums remain valid, so the node does not
// detect corruption.
func editIndex(t *testing.T, dir string, change func(*tree.Tree, *tree.Edit)) {
	t.Helper()
	f, err := page.Open(vfs.OS(), datadir.PageFile(dir), page.Options{})
	require.NoError(t, err)
	meta := f.Meta()
	all := tree.New(f, meta.Root, tree.Options{})
	edit := all.Edit()
	change(all, edit)
	require.NoError(t, edit.Commit())
	root, err := all.Flush()
	require.NoError(t, err)
	_, err = f.Checkpoint(page.Meta{Position: meta.Position, Root: root, CreatedMS: meta.CreatedMS})
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// A comparison of two nodes with the same content finds no difference. The scheduled comparison detects a
// difference, and the status and the health service report it. The pair continues to serve clients.
func TestVerify(t *testing.T) { simulated(t, testVerify) }

func testVerify(t *testing.T) {
	etcd := startEtcd(t)
	often := func(name string) config.Config {
		c := settingsOfPair(t, name, etcd)
		c.Verify.Interval = config.Duration(time.Second)
		return c
	}
	active := start(t, often("a"))
	active.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err := active.admin.Verify(t.Context(), &pb.VerifyRequest{})
	require.ErrorIs(t, kind(err), maintenance.ErrNoPartner)
	standbyConfig := often("b")
	standbyConfig.Data.Dir = t.TempDir()
	standby := start(t, standbyConfig)
	standby.waitFor(pb.Role_ROLE_STANDBY)
	active.waitFor(pb.Role_ROLE_ACTIVE)
	q := active.createQueue("orders")
	active.publish("orders", "one", "two", "three")
	_, err = standby.admin.Verify(t.Context(), &pb.VerifyRequest{})
	require.ErrorIs(t, kind(err), replication.ErrNotActive)
	for _, n := range []*testNode{active, standby} {
		_, err := n.admin.Checkpoint(t.Context(), &pb.CheckpointRequest{})
		require.NoError(t, err)
	}
	for _, deep := range []bool{false, true} {
		r, err := active.admin.Verify(t.Context(), &pb.VerifyRequest{Deep: deep, FullSpeed: true})
		require.NoError(t, err)
		require.Empty(t, r.GetDifferences())
		require.Empty(t, r.GetContentError())
		require.Equal(t, uint64(1), r.GetQueues())
		require.Equal(t, uint64(3), r.GetMessages())
		require.Len(t, r.GetNodes(), 2)
		require.Equal(t, []string{"a", "b"}, []string{r.GetNodes()[0].GetName(), r.GetNodes()[1].GetName()})
		if deep {
			require.Positive(t, r.GetNodes()[1].GetDamage().GetScrubbedPages())
		}
	}
	require.Empty(t, active.status().GetAlarms())

	standby.stop()
	changeDigest(t, standbyConfig.Data.Dir, q.GetId())
	standby = start(t, standbyConfig)
	standby.waitFor(pb.Role_ROLE_STANDBY)
	active.waitFor(pb.Role_ROLE_ACTIVE)
	// The scheduled comparison finds the difference without a request of a client.
	require.Eventually(t, func() bool { return len(active.status().GetAlarms()) == 1 }, testTimeout, 10*time.Millisecond)
	require.Equal(t, "differ", active.status().GetAlarms()[0].GetKind(),
		"the old name of the condition")
	require.Equal(t, "digests-differ", active.status().GetConditions()[0].GetKind())
	require.Eventually(t, func() bool {
		return active.health(server.AlarmService) == healthpb.HealthCheckResponse_NOT_SERVING
	}, testTimeout, 10*time.Millisecond)
	r, err := active.admin.Verify(t.Context(), &pb.VerifyRequest{})
	require.NoError(t, err)
	require.Len(t, r.GetDifferences(), 1)
	require.Equal(t, "orders", r.GetDifferences()[0].GetQueue())

	active.publish("orders", "four")
}

// A difference that only the contents show is reported, whether a client or a job compares the contents. It is reported
// until the contents are equal, or the store of the standby is replaced.
func TestVerifyContent(t *testing.T) { simulated(t, testVerifyContent) }

func testVerifyContent(t *testing.T) {
	etcd := startEtcd(t)
	active := start(t, settingsOfPair(t, "a", etcd))
	active.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	c := settingsOfPair(t, "b", etcd)
	c.Data.Dir = t.TempDir()
	standby := start(t, c)
	inSync := func() {
		t.Helper()
		standby.waitFor(pb.Role_ROLE_STANDBY)
		active.waitFor(pb.Role_ROLE_ACTIVE)
	}
	put := func(name string) {
		t.Helper()
		_, err := active.maintenance.PutJob(t.Context(),
			&pb.PutJobRequest{Job: &pb.Job{Name: name, Schedule: "@yearly", Kind: "verify"}})
		require.NoError(t, err)
	}
	differs := func(name string) {
		t.Helper()
		_, err := standby.admin.Checkpoint(t.Context(), &pb.CheckpointRequest{})
		require.NoError(t, err)
		standby.stop()
		addJob(t, c.Data.Dir, name)
		standby = start(t, c)
		inSync()
	}
	verify := func(deep bool) []*pb.QueueDifference {
		t.Helper()
		r, err := active.admin.Verify(t.Context(), &pb.VerifyRequest{Deep: deep, FullSpeed: true})
		require.NoError(t, err)
		require.Empty(t, r.GetContentError())
		return r.GetDifferences()
	}
	inSync()
	put("same")
	differs("other")
	require.Empty(t, verify(false))
	require.Nil(t, active.condition(conditions.DigestsDiffer, ""))
	require.Equal(t, maintenance.RunFailed, active.run("same").GetOutcome())
	require.NotNil(t, active.condition(conditions.DigestsDiffer, ""), "found by a job")
	require.Empty(t, verify(false))
	require.NotNil(t, active.condition(conditions.DigestsDiffer, ""), "the digests do not show it")

	put("other") // the contents are now equal
	require.Equal(t, maintenance.RunOK, active.run("same").GetOutcome())
	require.Nil(t, active.condition(conditions.DigestsDiffer, ""))

	differs("third")
	require.Len(t, verify(true), 1)
	require.Empty(t, verify(false))
	require.NotNil(t, active.condition(conditions.DigestsDiffer, ""), "found by a client")
	_, err := standby.admin.Checkpoint(t.Context(), &pb.CheckpointRequest{})
	require.NoError(t, err)
	flipNodes(t, datadir.PageFile(c.Data.Dir), int(c.PageSize))
	_, err = standby.admin.Scrub(t.Context(), &pb.ScrubRequest{FullSpeed: true})
	require.ErrorIs(t, kind(err), index.ErrCorrupt, "the standby now replaces its store")
	active.waitCondition(conditions.DigestsDiffer, "", false)
	require.Empty(t, verify(true))
}
