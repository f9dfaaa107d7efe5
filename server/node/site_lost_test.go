// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// lostFiles returns the paths of the files with lost records that a node reports.
func lostFiles(t *testing.T, n *simpair.Node) (paths []string) {
	t.Helper()
	st, err := n.Admin().GetStatus(t.Context(), &pb.GetStatusRequest{})
	require.NoError(t, err)
	for _, f := range st.GetStore().GetUnusedFiles() {
		if f.GetKind() == datadir.LeftTruncatedLog {
			paths = append(paths, f.GetPath())
		}
	}
	return paths
}

// lostBodies returns the bodies of the messages in a file, and information about the file.
func lostBodies(t *testing.T, w *simpair.World, path string) (bodies []string, info wal.SegmentInfo) {
	t.Helper()
	info, err := wal.InspectFile(w.Disk, path, func(it wal.Item) error {
		if it.Seal || it.Frame.Kind != wal.KindTxn {
			return nil
		}
		var r txn.Reader
		if err := r.Reset(it.Frame.Payload); err != nil {
			return err
		}
		for range r.Ops() {
			op, err := r.Next()
			if err != nil {
				return err
			}
			for rec := range op.Records {
				m, err := txn.DecodeMessage(rec)
				if err != nil {
					return err
				}
				bodies = append(bodies, string(m.Body))
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, info.Stop)
	return bodies, info
}

func metadataOf(err error) map[string]string {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetMetadata()
		}
	}
	return nil
}

// demoteDiverged requests the demotion of a former primary with lost transactions. It returns the metadata of the
// error.
func demoteDiverged(w *simpair.World, n *simpair.Node) map[string]string {
	w.T.Helper()
	var err error
	w.Eventually(func() bool {
		_, err = siteService(n).DemoteSite(w.T.Context(), &pb.DemoteSiteRequest{})
		return reasonOf(err) == pb.ErrorReason_ERROR_REASON_SITE_DIVERGED
	}, "%s should be refused", n.Config.Node.Name)
	return metadataOf(err)
}

// The transactions of a former primary after the origin of the promoted site are written to one file on each node
// that becomes active. This applies if the site stops automatically, and if it is demoted.
func TestLostTransactionsAreSaved(t *testing.T) {
	for name, demote := range map[string]bool{"stops automatically": false, "demoted first": true} {
		t.Run(name, func(t *testing.T) {
			simpair.Test(t, func(t *testing.T, w *simpair.World) { testLostTransactionsAreSaved(t, w, demote) })
		})
	}
}

func testLostTransactionsAreSaved(t *testing.T, w *simpair.World, demote bool) {
	east, west := pairsOfSites(t, w)
	require.NoError(t, sitePublish(t.Context(), east[0], "q", "at both"))
	waitReplicated(w, east[0], west[0])
	cutSites(w, east, west, true)
	lost := []string{"lost-1", "lost-2", "lost-3"}
	for _, body := range lost {
		require.NoError(t, sitePublish(t.Context(), east[0], "q", body))
	}
	promoted, err := siteService(west[0]).PromoteSite(t.Context(), &pb.PromoteSiteRequest{Reason: "test"})
	require.NoError(t, err)
	require.NoError(t, sitePublish(t.Context(), west[0], "q", "only in the west"))
	cutSites(w, east, west, false)
	if !demote {
		waitSite(w, east[0], pb.SiteRole_SITE_ROLE_STOPPED)
		waitSiteCondition(w, east[0], conditions.SupersededBySite, true)
	}
	fields := demoteDiverged(w, east[0])
	require.Equal(t, pb.SiteRole_SITE_ROLE_STOPPED, siteOf(t, east[0]).GetSite().GetRole())

	<-time.After(time.Minute)
	paths := lostFiles(t, east[0])
	require.Len(t, paths, 1)
	bodies, info := lostBodies(t, w, paths[0])
	require.Equal(t, lost, bodies)
	require.Equal(t, promoted.GetOrigin().GetLsn(), info.Prev.LSN)
	require.Equal(t, map[string]string{
		reason.LostFile: paths[0], reason.LostTransactions: "3",
		reason.LostFirst: strconv.FormatUint(info.Prev.LSN+1, 10), reason.LostLast: strconv.FormatUint(info.Last.LSN, 10),
	}, fields)
	require.Contains(t, supersededDetails(t, east[0]), paths[0])
	require.Contains(t, siteOf(t, east[0]).GetError(), paths[0])

	east[0].Kill()
	east[1].WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	w.Eventually(func() bool { return len(lostFiles(t, east[1])) == 1 }, "the new active should save them")
	bodies, _ = lostBodies(t, w, lostFiles(t, east[1])[0])
	require.Equal(t, lost, bodies)
	east[1] = east[1].Restart()
	east[1].WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	demoteDiverged(w, east[1])
	require.Len(t, lostFiles(t, east[1]), 1, "the file of the earlier process")
	require.NoError(t, w.Disk.Remove(lostFiles(t, east[1])[0]))
	fields = demoteDiverged(w, east[1])
	require.Equal(t, []string{fields[reason.LostFile]}, lostFiles(t, east[1]), "written again")
}

func supersededDetails(t *testing.T, n *simpair.Node) string {
	t.Helper()
	st, err := n.Admin().GetStatus(t.Context(), &pb.GetStatusRequest{})
	require.NoError(t, err)
	for _, c := range st.GetConditions() {
		if c.GetKind() == string(conditions.SupersededBySite) {
			return c.GetDetails()
		}
	}
	return ""
}

// The error of a demotion reports why the file with lost transactions is incomplete or missing. The file is
// incomplete if the log begins after the origin, and missing if the disk has no space.
func TestLostTransactionsIncomplete(t *testing.T) { simpair.Test(t, testLostTransactionsIncomplete) }

func testLostTransactionsIncomplete(t *testing.T, w *simpair.World) {
	c := siteNodes(w, "east", []string{"e"}, []string{"w"})[0]
	c.WAL.KeepBytes = 0
	east := w.Start(c, node.Options{})
	west := w.Start(siteNodes(w, "west", []string{"w"}, []string{"e"})[0], node.Options{})
	east.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	west.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err := east.Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
	require.NoError(t, err)
	_, err = siteService(west).DemoteSite(t.Context(), &pb.DemoteSiteRequest{})
	require.NoError(t, err)
	waitReplicated(w, east, west)
	w.Net.SetCut(east.Host(), west.Host(), true)
	const lost = 8
	for range lost {
		require.NoError(t, sitePublish(t.Context(), east, "q", strings.Repeat("x", 900<<10)))
		_, err := east.Admin().Checkpoint(t.Context(), &pb.CheckpointRequest{})
		require.NoError(t, err)
	}
	<-time.After(time.Minute)
	promoted, err := siteService(west).PromoteSite(t.Context(), &pb.PromoteSiteRequest{Reason: "test"})
	require.NoError(t, err)

	require.NoError(t, east.Stop())
	c.Disk.LowWatermark = 1 << 60
	east = w.Start(c, node.Options{})
	east.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	w.Net.SetCut(east.Host(), west.Host(), false)
	fields := demoteDiverged(w, east)
	require.Empty(t, fields[reason.LostFile], "no space")
	require.Empty(t, lostFiles(t, east))
	require.NoError(t, east.Stop())
	c.Disk.LowWatermark = 0
	east = w.Start(c, node.Options{})
	east.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)

	fields = demoteDiverged(w, east)
	require.Equal(t, []string{fields[reason.LostFile]}, lostFiles(t, east))
	_, info := lostBodies(t, w, fields[reason.LostFile])
	require.Greater(t, info.Prev.LSN, promoted.GetOrigin().GetLsn())
	n, err := strconv.Atoi(fields[reason.LostTransactions])
	require.NoError(t, err)
	require.Positive(t, n)
	require.Less(t, n, lost)
}
