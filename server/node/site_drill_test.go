// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/server/ops/site"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// drillNode copies the pair of a node, and starts a standalone node on the copy.
func drillNode(t *testing.T, w *simpair.World, from *simpair.Node, name string) *simpair.Node {
	t.Helper()
	c := w.Config(name)
	c.Listen, c.Insecure = fmt.Sprintf("%s:%d", w.Host(name), sitePort), true
	r, err := site.Drill(t.Context(), site.DrillOptions{
		Pull: siteService(from).PullSnapshot, Dir: c.Data.Dir, FS: w.Disk, SegmentBytes: c.WAL.SegmentBytes.Bytes(),
	})
	require.NoError(t, err)
	n := w.Start(c, node.Options{})
	n.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	st := siteOf(t, n).GetSite()
	require.Equal(t, pb.SiteRole_SITE_ROLE_PRIMARY, st.GetRole())
	require.Equal(t, r.Lineage.String(), st.GetLineage())
	require.EqualValues(t, 1, st.GetEpoch())
	return n
}

// messagesIn returns the number of messages in queue q.
func messagesIn(t *testing.T, n *simpair.Node) uint64 {
	t.Helper()
	resp, err := n.Admin().GetQueueDigests(t.Context(), &pb.GetQueueDigestsRequest{})
	require.NoError(t, err)
	require.Len(t, resp.GetQueues(), 1)
	return resp.GetQueues()[0].GetMessages()
}

// Drill copies the pair of a site. The copy accepts writes and does not affect the sites, even after the copy
// restarts.
func TestDrill(t *testing.T) { simpair.Test(t, testDrill) }

func testDrill(t *testing.T, w *simpair.World) {
	east, west := pairsOfSites(t, w)
	for i := range 3 {
		require.NoError(t, sitePublish(t.Context(), east[0], "q", fmt.Sprint(i)))
	}
	waitReplicated(w, east[0], west[0])
	for i, from := range []*simpair.Node{west[0], east[0]} {
		n := drillNode(t, w, from, fmt.Sprintf("drill-%d", i))
		require.Equal(t, contentOf(t, from), contentOf(t, n))
		for j := range 5 {
			require.NoError(t, sitePublish(t.Context(), n, "q", fmt.Sprint("drill", j)))
		}
		_, err := n.Admin().Checkpoint(t.Context(), &pb.CheckpointRequest{})
		require.NoError(t, err)
		require.NoError(t, n.Stop())
		n = n.Restart()
		n.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		require.NoError(t, sitePublish(t.Context(), n, "q", "after the restart"))
		require.EqualValues(t, 9, messagesIn(t, n))
		require.EqualValues(t, 3, messagesIn(t, from))
	}
	require.NoError(t, sitePublish(t.Context(), east[0], "q", "four"))
	waitReplicated(w, east[0], west[0])
	resp, err := siteService(west[0]).VerifySites(t.Context(), &pb.VerifySitesRequest{})
	require.NoError(t, err)
	require.Empty(t, resp.GetDifferences())
	require.EqualValues(t, 1, resp.GetEpoch())
	require.EqualValues(t, 4, messagesIn(t, west[0]))
	_, err = siteService(east[0]).SwitchSite(t.Context(), &pb.SwitchSiteRequest{})
	require.NoError(t, err)
	require.NoError(t, sitePublish(t.Context(), west[0], "q", "five"))
}

// A drill can copy a pair without sites.
func TestDrillWithoutSites(t *testing.T) { simpair.Test(t, testDrillWithoutSites) }

func testDrillWithoutSites(t *testing.T, w *simpair.World) {
	alone := w.Start(w.Config("a"), node.Options{})
	alone.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err := alone.Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.NoError(t, sitePublish(t.Context(), alone, "q", "one"))
	n := drillNode(t, w, alone, "drill")
	require.NoError(t, sitePublish(t.Context(), n, "q", "two"))
	require.EqualValues(t, 2, messagesIn(t, n))
	require.EqualValues(t, 1, messagesIn(t, alone))
	require.Empty(t, siteOf(t, alone).GetSite().GetLineage(), "the copy does not change the lineage of the pair")
}

// A copy cannot become a replica of a site. No site becomes a replica of the copy, and no site stops because of the
// copy.
func TestDrillStaysDetached(t *testing.T) { simpair.Test(t, testDrillStaysDetached) }

func testDrillStaysDetached(t *testing.T, w *simpair.World) {
	east := w.Start(siteNodes(w, "east", []string{"e"}, []string{"d"})[0], node.Options{})
	east.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err := east.Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
	require.NoError(t, err)
	west := w.Start(siteNodes(w, "west", []string{"w"}, []string{"e"})[0], node.Options{})
	west.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err = siteService(west).DemoteSite(t.Context(), &pb.DemoteSiteRequest{})
	require.NoError(t, err)
	waitReplicated(w, east, west)
	c := drillNode(t, w, west, "d")
	require.NoError(t, c.Stop())
	// The node is started on the copy with the settings of a site.
	settings := siteNodes(w, "drill", []string{"d"}, []string{"e", "w"})[0]
	settings.Data.Dir = c.Config.Data.Dir
	drill := w.Start(settings, node.Options{})
	drill.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	for _, of := range []*config.Config{&east.Config, &west.Config} {
		_, err = siteService(drill).DemoteSite(t.Context(), &pb.DemoteSiteRequest{ReplicaOf: of.Listen})
		require.Contains(t, []pb.ErrorReason{
			pb.ErrorReason_ERROR_REASON_SITE_DIVERGED, pb.ErrorReason_ERROR_REASON_SITE_ROLE,
		}, reasonOf(err), err)
	}
	_, err = siteService(drill).PromoteSite(t.Context(), &pb.PromoteSiteRequest{Reason: "test", Force: true})
	require.Equal(t, pb.ErrorReason_ERROR_REASON_SITE_ROLE, reasonOf(err), err)
	<-time.After(time.Minute) // east and the copy query each other's state
	_, err = siteService(east).SwitchSite(t.Context(), &pb.SwitchSiteRequest{To: "drill"})
	require.Equal(t, pb.ErrorReason_ERROR_REASON_SITE_ROLE, reasonOf(err), err)
	require.NoError(t, sitePublish(t.Context(), east, "q", "one"))
	require.NoError(t, sitePublish(t.Context(), drill, "q", "two"))
	require.Equal(t, pb.SiteRole_SITE_ROLE_PRIMARY, siteOf(t, east).GetSite().GetRole())
	waitReplicated(w, east, west)
}
