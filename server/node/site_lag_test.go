// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

const testMaxLag = 2 * time.Second

// limitedSites starts two standalone nodes with a lag limit: east as the primary, and west as its replica.
func limitedSites(t *testing.T, w *simpair.World, limit time.Duration) (east, west *simpair.Node) {
	t.Helper()
	var nodes []*simpair.Node
	for _, names := range [][]string{{"e", "w"}, {"w", "e"}} {
		c := siteNodes(w, map[string]string{"e": "east", "w": "west"}[names[0]], names[:1], names[1:])[0]
		c.Site.MaxLag = config.Duration(limit)
		nodes = append(nodes, w.Start(c, node.Options{}))
	}
	east, west = nodes[0], nodes[1]
	east.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	west.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err := east.Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
	require.NoError(t, err)
	_, err = siteService(west).DemoteSite(t.Context(), &pb.DemoteSiteRequest{})
	require.NoError(t, err)
	waitReplicated(w, east, west)
	return east, west
}

func reasonOfPublish(ctx context.Context, n *simpair.Node) pb.ErrorReason {
	return reasonOf(sitePublish(ctx, n, "q", "a message"))
}

// A primary accepts writes for at most site.max-lag without a confirmation by the replica. Later writes wait until
// the replica has caught up, and are refused after 5 s.
func TestSiteMaxLag(t *testing.T) { simpair.Test(t, testSiteMaxLag) }

func testSiteMaxLag(t *testing.T, w *simpair.World) {
	east, west := limitedSites(t, w, testMaxLag)
	const accepted, lag = pb.ErrorReason_ERROR_REASON_UNSPECIFIED, pb.ErrorReason_ERROR_REASON_SITE_LAG
	for range 50 { // the replica confirms in time
		require.Equal(t, accepted, reasonOfPublish(t.Context(), east))
		<-time.After(100 * time.Millisecond)
	}
	<-time.After(time.Second) // until the last write is confirmed
	w.Net.SetCut(east.Host(), west.Host(), true)
	<-time.After(time.Minute)
	require.Equal(t, accepted, reasonOfPublish(t.Context(), east), "the replica has all records")
	began := time.Now()
	for time.Since(began) < testMaxLag-200*time.Millisecond {
		require.Equal(t, accepted, reasonOfPublish(t.Context(), east))
		<-time.After(50 * time.Millisecond)
	}
	<-time.After(500 * time.Millisecond)
	began = time.Now()
	require.Equal(t, lag, reasonOfPublish(t.Context(), east))
	require.Equal(t, 5*time.Second, time.Since(began).Round(100*time.Millisecond))
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	began = time.Now()
	require.Error(t, sitePublish(short, east, "q", "no"))
	require.Equal(t, time.Second, time.Since(began).Round(100*time.Millisecond))
	waitSiteCondition(w, east, conditions.SiteLag, true)

	waiting := make(chan pb.ErrorReason, 1)
	go func() { waiting <- reasonOfPublish(t.Context(), east) }()
	<-time.After(time.Second)
	w.Net.SetCut(east.Host(), west.Host(), false)
	require.Equal(t, accepted, <-waiting, "the replica has caught up while the write waits")
	waitReplicated(w, east, west)
	waitSiteCondition(w, east, conditions.SiteLag, false)
	for range 50 {
		require.Equal(t, accepted, reasonOfPublish(t.Context(), east))
		<-time.After(100 * time.Millisecond)
	}
	_, err := siteService(east).SwitchSite(t.Context(), &pb.SwitchSiteRequest{})
	require.NoError(t, err)
	for range 50 {
		require.Equal(t, accepted, reasonOfPublish(t.Context(), west))
		<-time.After(100 * time.Millisecond)
	}
	waitReplicated(w, west, east)
	require.Equal(t, contentOf(t, east), contentOf(t, west))
}

// After a restart, a primary measures the lag from its start. The setting can be changed while writes are
// refused.
func TestSiteMaxLagWithoutReport(t *testing.T) { simpair.Test(t, testSiteMaxLagWithoutReport) }

func testSiteMaxLagWithoutReport(t *testing.T, w *simpair.World) {
	east, west := limitedSites(t, w, testMaxLag)
	west.Kill()
	east = east.Restart()
	east.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	require.Equal(t, pb.ErrorReason_ERROR_REASON_UNSPECIFIED, reasonOfPublish(t.Context(), east))
	<-time.After(testMaxLag + time.Second)
	require.Equal(t, pb.ErrorReason_ERROR_REASON_SITE_LAG, reasonOfPublish(t.Context(), east))
	_, err := pb.NewMaintenanceServiceClient(east.Conn()).ChangeSettings(t.Context(), &pb.ChangeSettingsRequest{
		Set: map[string]string{"site.max-lag": "0s"},
	})
	require.NoError(t, err)
	require.Equal(t, pb.ErrorReason_ERROR_REASON_UNSPECIFIED, reasonOfPublish(t.Context(), east))
}

// After an unplanned promotion, the limit applies when the former primary has become the replica.
func TestSiteMaxLagAfterPromotion(t *testing.T) { simpair.Test(t, testSiteMaxLagAfterPromotion) }

func testSiteMaxLagAfterPromotion(t *testing.T, w *simpair.World) {
	east, west := limitedSites(t, w, testMaxLag)
	east.Kill()
	_, err := siteService(west).PromoteSite(t.Context(), &pb.PromoteSiteRequest{Reason: "test"})
	require.NoError(t, err)
	for range 10 {
		require.Equal(t, pb.ErrorReason_ERROR_REASON_UNSPECIFIED, reasonOfPublish(t.Context(), west))
		<-time.After(time.Second)
	}
	east = east.Restart()
	waitSite(w, east, pb.SiteRole_SITE_ROLE_REPLICA)
	waitReplicated(w, west, east)
	east.Kill()
	require.Equal(t, pb.ErrorReason_ERROR_REASON_UNSPECIFIED, reasonOfPublish(t.Context(), west))
	<-time.After(testMaxLag + time.Second)
	require.Equal(t, pb.ErrorReason_ERROR_REASON_SITE_LAG, reasonOfPublish(t.Context(), west))
}

// Without a limit, the primary does not depend on the replica.
func TestSiteWithoutMaxLag(t *testing.T) {
	simpair.Test(t, func(t *testing.T, w *simpair.World) {
		east, west := limitedSites(t, w, 0)
		west.Kill()
		for range 10 {
			require.Equal(t, pb.ErrorReason_ERROR_REASON_UNSPECIFIED, reasonOfPublish(t.Context(), east))
			<-time.After(time.Minute)
		}
	})
}
