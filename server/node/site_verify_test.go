// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/simnet"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// A comparison requested at either site finds no differences while clients publish. The primary is not paused.
func TestVerifySites(t *testing.T) { simpair.Test(t, testVerifySites) }

func testVerifySites(t *testing.T, w *simpair.World) {
	const delay = 30 * time.Millisecond
	east, west := pairsOfSites(t, w)
	delaySites(w, east, west, delay)
	// The transfer of the digests takes longer than that of records sent after them.
	for _, direction := range simnet.Both(east[0].Host(), west[0].Host()) {
		w.Net.Change(direction, func(l *simnet.Link) { l.BytesPerSecond = 1 << 20 })
	}
	const queues = 200
	for i := range queues - 1 {
		_, err := east[0].Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{
			Name: fmt.Sprintf("%s%d", strings.Repeat("x", 200), i),
		})
		require.NoError(t, err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	slowest := make([]time.Duration, 4)
	published := make([]int, 4)
	for i := range slowest {
		load.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				began := time.Now()
				if err := sitePublish(t.Context(), east[0], "q", fmt.Sprint(i, n)); err != nil {
					t.Error(err)
					return
				}
				slowest[i] = max(slowest[i], time.Since(began))
				published[i]++
				<-time.After(5 * time.Millisecond)
			}
		})
	}
	var last uint64
	for round := range 6 {
		resp, err := siteService([2]*simpair.Node{east[0], west[0]}[round%2]).VerifySites(t.Context(),
			&pb.VerifySitesRequest{})
		require.NoError(t, err)
		require.Empty(t, resp.GetDifferences())
		require.Equal(t, "east", resp.GetPrimary())
		require.Equal(t, "west", resp.GetReplica())
		require.Equal(t, uint64(queues), resp.GetQueues())
		require.Greater(t, resp.GetLogical(), last)
		require.NotEqual(t, resp.GetPrimaryLsn(), resp.GetReplicaLsn())
		require.LessOrEqual(t, resp.GetHeld().AsDuration(), 2*delay+100*time.Millisecond)
		last = resp.GetLogical()
	}
	stop()
	load.Wait()
	for i := range slowest {
		require.Less(t, slowest[i], delay, "publishes wait for the comparison")
		require.Greater(t, published[i], 50)
	}
	waitReplicated(w, east[0], west[0])
	require.Equal(t, contentOf(t, east[0]), contentOf(t, west[0]))
	require.False(t, reports(t, west[0], "digests-differ"))
}

// reports reports whether a node has a condition.
func reports(t *testing.T, n *simpair.Node, condition string) bool {
	t.Helper()
	st, err := n.Admin().GetStatus(t.Context(), &pb.GetStatusRequest{})
	require.NoError(t, err)
	return slices.ContainsFunc(st.GetConditions(), func(c *pb.Condition) bool { return c.GetKind() == condition })
}

// A comparison detects a difference. The replica reports the difference until a comparison finds none or the site is
// no longer a replica.
func TestVerifySitesDiffer(t *testing.T) { simpair.Test(t, testVerifySitesDiffer) }

func testVerifySitesDiffer(t *testing.T, w *simpair.World) {
	east := w.Start(siteNodes(w, "east", []string{"e"}, []string{"w"})[0], node.Options{})
	replica := siteNodes(w, "west", []string{"w"}, []string{"e"})[0]
	replica.Data.Dir = t.TempDir()
	west := w.Start(replica, node.Options{})
	east.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	west.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	verify := func(n *simpair.Node) (*pb.VerifySitesResponse, error) {
		return siteService(n).VerifySites(t.Context(), &pb.VerifySitesRequest{})
	}
	for _, n := range []*simpair.Node{east, west} {
		_, err := verify(n)
		require.Equal(t, pb.ErrorReason_ERROR_REASON_SITE_ROLE, reasonOf(err), err)
	}
	for _, name := range []string{"other", "q"} {
		_, err := east.Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: name})
		require.NoError(t, err)
	}
	q, err := east.Queues().GetQueue(t.Context(), &pb.GetQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.NoError(t, sitePublish(t.Context(), east, "q", "one"))
	_, err = siteService(west).DemoteSite(t.Context(), &pb.DemoteSiteRequest{})
	require.NoError(t, err)
	waitReplicated(w, east, west)
	_, err = west.Admin().Checkpoint(t.Context(), &pb.CheckpointRequest{})
	require.NoError(t, err)
	require.NoError(t, west.Stop())

	_, err = verify(east)
	require.Equal(t, pb.ErrorReason_ERROR_REASON_SITE_UNREACHABLE, reasonOf(err), err)

	changeDigest(t, west.Config.Data.Dir, q.GetQueue().GetId())
	west = west.Restart()
	waitSite(w, west, pb.SiteRole_SITE_ROLE_REPLICA)
	waitReplicated(w, east, west)
	for _, n := range []*simpair.Node{west, east} {
		var resp *pb.VerifySitesResponse
		w.Eventually(func() bool {
			resp, err = verify(n)
			return err == nil // until the primary has connected to the restarted node
		}, "comparison")
		require.Len(t, resp.GetDifferences(), 1)
		d := resp.GetDifferences()[0]
		require.Equal(t, "q", d.GetQueue())
		require.NotEqual(t, d.GetPrimary().GetDigest(), d.GetReplica().GetDigest())
		require.Equal(t, uint64(1), d.GetReplica().GetMessages())
	}
	w.Eventually(func() bool { return reports(t, west, "digests-differ") }, "condition of the replica")
	require.False(t, reports(t, east, "digests-differ"))
	_, err = siteService(east).SwitchSite(t.Context(), &pb.SwitchSiteRequest{})
	require.NoError(t, err)
	w.Eventually(func() bool { return !reports(t, west, "digests-differ") }, "the former replica is the primary")
}

// If the replica has no stream from the primary, a comparison fails with the reason.
func TestVerifySitesCut(t *testing.T) { simpair.Test(t, testVerifySitesCut) }

func testVerifySitesCut(t *testing.T, w *simpair.World) {
	east, west := pairsOfSites(t, w)
	delaySites(w, east, west, 700*time.Millisecond) // a response takes longer than a hold
	_, err := siteService(west[0]).VerifySites(t.Context(), &pb.VerifySitesRequest{})
	require.Contains(t, []pb.ErrorReason{
		pb.ErrorReason_ERROR_REASON_SITE_UNREACHABLE, pb.ErrorReason_ERROR_REASON_SITE_NOT_COMPARED,
	}, reasonOf(err), err)
	delaySites(w, east, west, time.Millisecond)
	require.NoError(t, sitePublish(t.Context(), east[0], "q", "one"))
	waitReplicated(w, east[0], west[0])
	cutSites(w, east, west, true)
	_, err = siteService(west[0]).VerifySites(t.Context(), &pb.VerifySitesRequest{})
	require.Equal(t, pb.ErrorReason_ERROR_REASON_SITE_UNREACHABLE, reasonOf(err), err)
}
