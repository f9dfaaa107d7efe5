// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/test/simnet"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// sitePort is the port of all nodes in tests of sites. It is fixed, because the settings of the other site contain
// it before the nodes start.
const sitePort = 7420

// siteNodes returns the settings of the nodes of a site. If only one name is given, the node is standalone.
func siteNodes(w *simpair.World, site string, names, remote []string) []config.Config {
	var all []config.Config
	for _, name := range names {
		c := w.Config(name)
		if len(names) > 1 {
			c = w.PairConfig(name)
			c.Coordinator.Etcd.Prefix = "/" + site
		}
		c.Listen = fmt.Sprintf("%s:%d", w.Host(name), sitePort)
		c.Site.Name, c.Insecure = site, true
		for _, r := range remote {
			c.Site.Remote = append(c.Site.Remote, fmt.Sprintf("%s:%d", w.Host(r), sitePort))
		}
		all = append(all, c)
	}
	return all
}

func siteService(n *simpair.Node) pb.SiteServiceClient { return pb.NewSiteServiceClient(n.Conn()) }

func siteOf(t *testing.T, n *simpair.Node) *pb.GetSiteResponse {
	t.Helper()
	resp, err := siteService(n).GetSite(t.Context(), &pb.GetSiteRequest{})
	require.NoError(t, err)
	return resp
}

// waitSite waits until a node reports that its site has the given role.
func waitSite(w *simpair.World, n *simpair.Node, role pb.SiteRole) {
	w.T.Helper()
	w.Eventually(func() bool {
		resp, err := siteService(n).GetSite(w.T.Context(), &pb.GetSiteRequest{})
		return err == nil && resp.GetSite().GetRole() == role
	}, "%s should become %s", n.Config.Node.Name, role)
}

func sitePublish(ctx context.Context, n *simpair.Node, queue, body string) error {
	_, err := n.Queues().Publish(ctx, &pb.PublishRequest{Queue: queue, Messages: []*pb.Message{{Body: []byte(body)}}})
	return err
}

// waitReplicated waits until the replica has applied all records of the primary.
func waitReplicated(w *simpair.World, primary, replica *simpair.Node) {
	w.T.Helper()
	w.Eventually(func() bool {
		end := siteOf(w.T, primary).GetSite().GetApplied()
		r := siteOf(w.T, replica).GetReplication()
		return r.GetConnected() && r.GetPrimaryEnd().GetLsn() >= end.GetLsn() && r.GetLagRecords() == 0
	}, "%s should have all records", replica.Config.Node.Name)
}

func contentOf(t *testing.T, n *simpair.Node) string {
	t.Helper()
	resp, err := n.Admin().GetQueueDigests(t.Context(), &pb.GetQueueDigestsRequest{})
	require.NoError(t, err)
	return fmt.Sprint(resp.GetDigest(), resp.GetQueues())
}

// A demoted site becomes a replica of the primary. A switch exchanges the roles. Both sites then have the same
// content.
func TestSwitchSite(t *testing.T) { simpair.Test(t, testSwitchSite) }

func testSwitchSite(t *testing.T, w *simpair.World) {
	east := w.Start(siteNodes(w, "east", []string{"e"}, []string{"w"})[0], node.Options{})
	west := w.Start(siteNodes(w, "west", []string{"w"}, []string{"e"})[0], node.Options{})
	east.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	west.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err := east.Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.NoError(t, sitePublish(t.Context(), east, "q", "one"))

	demoted, err := siteService(west).DemoteSite(t.Context(), &pb.DemoteSiteRequest{})
	require.NoError(t, err)
	require.Equal(t, "east", demoted.GetPrimary())
	waitSite(w, west, pb.SiteRole_SITE_ROLE_REPLICA)
	require.NoError(t, sitePublish(t.Context(), east, "q", "two"))
	waitReplicated(w, east, west)
	require.Equal(t, contentOf(t, east), contentOf(t, west))
	require.Equal(t, pb.ErrorReason_ERROR_REASON_REPLICA, reasonOf(sitePublish(t.Context(), west, "q", "no")))

	switched, err := siteService(east).SwitchSite(t.Context(), &pb.SwitchSiteRequest{To: "west"})
	require.NoError(t, err)
	require.Equal(t, "west", switched.GetPrimary())
	t.Log("pause", switched.GetPause().AsDuration())
	waitSite(w, west, pb.SiteRole_SITE_ROLE_PRIMARY)
	waitSite(w, east, pb.SiteRole_SITE_ROLE_REPLICA)
	require.Equal(t, pb.ErrorReason_ERROR_REASON_REPLICA, reasonOf(sitePublish(t.Context(), east, "q", "no")))
	require.NoError(t, sitePublish(t.Context(), west, "q", "three"))
	waitReplicated(w, west, east)
	require.Equal(t, contentOf(t, east), contentOf(t, west))
	<-time.After(time.Minute)
	require.Equal(t, contentOf(t, east), contentOf(t, west))
}

// pairsOfSites starts a pair at each of two sites. The second site is the replica. The first node of each pair is
// its active.
func pairsOfSites(t *testing.T, w *simpair.World) (east, west [2]*simpair.Node) {
	t.Helper()
	names := [2][]string{{"east-a", "east-b"}, {"west-a", "west-b"}}
	for i, site := range []*[2]*simpair.Node{&east, &west} {
		all := siteNodes(w, []string{"east", "west"}[i], names[i], names[1-i])
		site[0] = w.Start(all[0], node.Options{})
		site[0].WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		site[1] = w.Start(all[1], node.Options{})
		w.WaitInSync(site[0], site[1])
	}
	_, err := east[0].Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
	require.NoError(t, err)
	_, err = siteService(west[0]).DemoteSite(t.Context(), &pb.DemoteSiteRequest{})
	require.NoError(t, err)
	waitReplicated(w, east[0], west[0])
	return east, west
}

// delaySites sets the latency between the hosts of two sites.
func delaySites(w *simpair.World, east, west [2]*simpair.Node, d time.Duration) {
	for _, e := range east {
		for _, r := range west {
			for _, direction := range simnet.Both(e.Host(), r.Host()) {
				w.Net.Change(direction, func(l *simnet.Link) { l.Delay = d })
			}
		}
	}
}

func cutSites(w *simpair.World, east, west [2]*simpair.Node, cut bool) {
	for _, e := range east {
		for _, r := range west {
			w.Net.SetCut(e.Host(), r.Host(), cut)
		}
	}
}

// The role of a site and the position of a replica survive failovers at both sites. No transaction is lost or
// applied twice.
func TestSitesSurviveFailovers(t *testing.T) { simpair.Test(t, testSitesSurviveFailovers) }

func testSitesSurviveFailovers(t *testing.T, w *simpair.World) {
	east, west := pairsOfSites(t, w)
	require.NoError(t, sitePublish(t.Context(), east[0], "q", "one"))
	west[0].Kill()
	west[1].WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	require.NoError(t, sitePublish(t.Context(), east[0], "q", "two"))
	waitReplicated(w, east[0], west[1])
	require.Equal(t, contentOf(t, east[0]), contentOf(t, west[1]))

	east[0].Kill()
	east[1].WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	require.NoError(t, sitePublish(t.Context(), east[1], "q", "three"))
	waitReplicated(w, east[1], west[1])
	require.Equal(t, contentOf(t, east[1]), contentOf(t, west[1]))

	east[0], west[0] = east[0].Restart(), west[0].Restart()
	w.WaitInSync(east[1], east[0])
	w.WaitInSync(west[1], west[0])
	_, err := siteService(east[1]).SwitchSite(t.Context(), &pb.SwitchSiteRequest{})
	require.NoError(t, err)
	require.NoError(t, sitePublish(t.Context(), west[1], "q", "four"))
	waitReplicated(w, west[1], east[1])
	require.Equal(t, contentOf(t, east[1]), contentOf(t, west[1]))
	for _, n := range []*simpair.Node{east[0], west[0]} { // the standbys
		w.Eventually(func() bool { return contentOf(t, n) == contentOf(t, west[1]) }, n.Config.Node.Name)
	}
}

// If the replica cannot complete a switch in time, the switch is rolled back and the primary continues.
func TestSwitchRolledBack(t *testing.T) { simpair.Test(t, testSwitchRolledBack) }

func testSwitchRolledBack(t *testing.T, w *simpair.World) {
	east, west := pairsOfSites(t, w)
	delaySites(w, east, west, 20*time.Millisecond)
	failed := make(chan error, 1)
	go func() {
		_, err := siteService(east[0]).SwitchSite(t.Context(), &pb.SwitchSiteRequest{})
		failed <- err
	}()
	<-time.After(90 * time.Millisecond) // the primary is stopped, and the takeover request is in transit
	west[0].Kill()
	require.Equal(t, pb.ErrorReason_ERROR_REASON_SITE_SWITCH, reasonOf(<-failed))
	require.NoError(t, sitePublish(t.Context(), east[0], "q", "one"))
	require.Equal(t, pb.SiteRole_SITE_ROLE_PRIMARY, siteOf(t, east[0]).GetSite().GetRole())
	waitReplicated(w, east[0], west[1])
	resp, err := siteService(east[0]).SwitchSite(t.Context(), &pb.SwitchSiteRequest{})
	require.NoError(t, err)
	require.LessOrEqual(t, resp.GetPause().AsDuration(), 100*time.Millisecond) // two round trips
	require.NoError(t, sitePublish(t.Context(), west[1], "q", "two"))
	waitReplicated(w, west[1], east[0])
	require.Equal(t, contentOf(t, east[0]), contentOf(t, west[1]))
}

// If the outcome of a switch is unknown, the primary remains stopped until the other site responds, even after a
// failover. If the other site was promoted, the stopped site becomes its replica. Otherwise the stopped site
// continues as the primary.
func TestSwitchResolved(t *testing.T) {
	for name, after := range map[string]time.Duration{
		// The two requests for the state of the replica take 80 ms, and the takeover request takes 20 ms.
		"before the promotion": 90 * time.Millisecond, "after the promotion": 110 * time.Millisecond,
	} {
		t.Run(name, func(t *testing.T) {
			simpair.Test(t, func(t *testing.T, w *simpair.World) { testSwitchResolved(t, w, after) })
		})
	}
}

func testSwitchResolved(t *testing.T, w *simpair.World, after time.Duration) {
	east, west := pairsOfSites(t, w)
	delaySites(w, east, west, 20*time.Millisecond)
	<-time.After(5 * time.Second) // until the connections are idle
	failed := make(chan error, 1)
	go func() {
		_, err := siteService(east[0]).SwitchSite(t.Context(), &pb.SwitchSiteRequest{Timeout: durationpb.New(time.Second)})
		failed <- err
	}()
	<-time.After(after)
	cutSites(w, east, west, true)
	err := <-failed
	require.Equal(t, pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN, reasonOf(err), err)
	require.Equal(t, pb.SiteRole_SITE_ROLE_STOPPED, siteOf(t, east[0]).GetSite().GetRole())
	promoted := siteOf(t, west[0]).GetSite().GetRole() == pb.SiteRole_SITE_ROLE_PRIMARY
	require.Equal(t, after > 100*time.Millisecond, promoted)
	east[0].Kill()
	east[1].WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	require.Equal(t, pb.ErrorReason_ERROR_REASON_REPLICA, reasonOf(sitePublish(t.Context(), east[1], "q", "no")))
	primary, replica := east[1], west[0]
	if promoted {
		primary, replica = replica, primary
		require.NoError(t, sitePublish(t.Context(), west[0], "q", "one"))
	}
	cutSites(w, east, west, false)
	waitSite(w, primary, pb.SiteRole_SITE_ROLE_PRIMARY)
	waitSite(w, replica, pb.SiteRole_SITE_ROLE_REPLICA)
	require.NoError(t, sitePublish(t.Context(), primary, "q", "two"))
	waitReplicated(w, primary, replica)
	require.Equal(t, contentOf(t, primary), contentOf(t, replica))
}

// An unplanned promotion is refused while the primary responds. The old primary stops when it detects the
// promotion. If the new primary has all of its transactions, the old primary becomes a replica. Otherwise it
// remains stopped.
func TestUnplannedPromotion(t *testing.T) {
	for name, lost := range map[string]bool{"nothing lost": false, "one lost": true} {
		t.Run(name, func(t *testing.T) {
			simpair.Test(t, func(t *testing.T, w *simpair.World) { testUnplannedPromotion(t, w, lost) })
		})
	}
}

func testUnplannedPromotion(t *testing.T, w *simpair.World, lost bool) {
	east, west := pairsOfSites(t, w)
	req := &pb.PromoteSiteRequest{Reason: "test"}
	_, err := siteService(west[0]).PromoteSite(t.Context(), req)
	require.Equal(t, pb.ErrorReason_ERROR_REASON_SITE_PRIMARY_ANSWERS, reasonOf(err))
	require.NoError(t, sitePublish(t.Context(), east[0], "q", "one"))
	waitReplicated(w, east[0], west[0])
	cutSites(w, east, west, true)
	if lost {
		require.NoError(t, sitePublish(t.Context(), east[0], "q", "lost"))
	}
	_, err = siteService(west[0]).PromoteSite(t.Context(), req)
	require.NoError(t, err)
	require.NoError(t, sitePublish(t.Context(), west[0], "q", "two"))
	cutSites(w, east, west, false)
	if !lost {
		waitSite(w, east[0], pb.SiteRole_SITE_ROLE_REPLICA)
		waitReplicated(w, west[0], east[0])
		require.Equal(t, contentOf(t, east[0]), contentOf(t, west[0]))
		return
	}
	waitSite(w, east[0], pb.SiteRole_SITE_ROLE_STOPPED)
	<-time.After(time.Minute)
	require.Equal(t, pb.SiteRole_SITE_ROLE_STOPPED, siteOf(t, east[0]).GetSite().GetRole())
	_, err = siteService(east[0]).DemoteSite(t.Context(), &pb.DemoteSiteRequest{})
	require.Equal(t, pb.ErrorReason_ERROR_REASON_SITE_DIVERGED, reasonOf(err))
}

// A pair that was restored from a backup of the primary can become a replica that continues after the backup. If the
// log of the primary begins later, the demotion is refused.
func TestReplicaFromBackup(t *testing.T) {
	for name, trimmed := range map[string]bool{"log complete": false, "log trimmed": true} {
		t.Run(name, func(t *testing.T) {
			simpair.Test(t, func(t *testing.T, w *simpair.World) { testReplicaFromBackup(t, w, trimmed) })
		})
	}
}

func testReplicaFromBackup(t *testing.T, w *simpair.World, trimmed bool) {
	c := siteNodes(w, "east", []string{"e"}, []string{"w"})[0]
	c.Data.Dir, c.Backup.Path = filepath.Join(t.TempDir(), "east"), filepath.Join(t.TempDir(), "backups")
	c.WAL.KeepBytes = 0
	east := w.Start(c, node.Options{})
	east.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err := east.Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.NoError(t, sitePublish(t.Context(), east, "q", "in the backup"))
	making, err := pb.NewMaintenanceServiceClient(east.Conn()).Backup(t.Context(), &pb.BackupRequest{FullSpeed: true})
	require.NoError(t, err)
	var set *pb.SaveSet
	for set == nil {
		r, err := making.Recv()
		require.NoError(t, err)
		set = r.GetSet()
	}
	require.NoError(t, sitePublish(t.Context(), east, "q", "after the backup"))
	if trimmed {
		for range 8 { // several segments that later checkpoints do not need
			require.NoError(t, sitePublish(t.Context(), east, "q", strings.Repeat("x", 900<<10)))
			_, err := east.Admin().Checkpoint(t.Context(), &pb.CheckpointRequest{})
			require.NoError(t, err)
		}
		<-time.After(time.Minute)
	}

	r := siteNodes(w, "west", []string{"w"}, []string{"e"})[0]
	r.Data.Dir = filepath.Join(t.TempDir(), "west")
	_, err = backup.Restore(t.Context(), set.GetPath(), r.Data.Dir, backup.RestoreOptions{})
	require.NoError(t, err)
	west := w.Start(r, node.Options{})
	west.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err = siteService(west).DemoteSite(t.Context(), &pb.DemoteSiteRequest{})
	if trimmed {
		require.Equal(t, pb.ErrorReason_ERROR_REASON_SITE_BEHIND, reasonOf(err), err)
		return
	}
	require.NoError(t, err)
	waitReplicated(w, east, west)
	require.Equal(t, contentOf(t, east), contentOf(t, west))
}

// Settlements of deliveries made before an unplanned promotion are refused, because their sequences may now belong
// to other messages.
func TestSettlementOfEarlierSiteEpoch(t *testing.T) {
	simpair.Test(t, testSettlementOfEarlierSiteEpoch)
}

func testSettlementOfEarlierSiteEpoch(t *testing.T, w *simpair.World) {
	east := w.Start(siteNodes(w, "east", []string{"e"}, []string{"w"})[0], node.Options{})
	west := w.Start(siteNodes(w, "west", []string{"w"}, []string{"e"})[0], node.Options{})
	east.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	west.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err := east.Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.NoError(t, sitePublish(t.Context(), east, "q", "one"))
	_, err = siteService(west).DemoteSite(t.Context(), &pb.DemoteSiteRequest{})
	require.NoError(t, err)
	waitReplicated(w, east, west)
	require.NoError(t, settleAt(t, east, 1), "the first epoch")
	_, err = siteService(east).SwitchSite(t.Context(), &pb.SwitchSiteRequest{})
	require.NoError(t, err)
	require.NoError(t, settleAt(t, west, 1), "nothing was lost")
	waitReplicated(w, west, east)
	_, err = siteService(east).PromoteSite(t.Context(), &pb.PromoteSiteRequest{Reason: "test", Force: true})
	require.NoError(t, err)
	for _, epoch := range []uint64{1, 2} {
		require.Equal(t, pb.ErrorReason_ERROR_REASON_SITE_EPOCH, reasonOf(settleAt(t, east, epoch)))
	}
	for _, epoch := range []uint64{0, 3, 4} {
		require.NoError(t, settleAt(t, east, epoch))
	}
}

// settleAt attaches a consumer, and commits and prepares settlements, all for deliveries of the given epoch. It
// requires that all calls return the same reason. It returns the error of the attach.
func settleAt(t *testing.T, n *simpair.Node, epoch uint64) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := n.Queues().Consume(ctx)
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: "q", SiteEpoch: epoch}}))
	_, attach := stream.Recv()
	ranges := []*pb.SequenceRange{{First: 1, Last: 1}}
	ack := &pb.Operation{Kind: &pb.Operation_Ack{
		Ack: &pb.AckOperation{Queue: "q", Ranges: ranges, SiteEpoch: epoch},
	}}
	release := &pb.Operation{Kind: &pb.Operation_Release{
		Release: &pb.ReleaseOperation{Queue: "q", Ranges: ranges, SiteEpoch: epoch},
	}}
	for _, op := range []*pb.Operation{ack, release} {
		_, err = n.Queues().Commit(ctx, &pb.CommitRequest{Operations: []*pb.Operation{op}})
		require.Equal(t, reasonOf(attach), reasonOf(err))
	}
	if attach != nil {
		_, err = n.Queues().Prepare(ctx, &pb.PrepareRequest{Xid: "x", Operations: []*pb.Operation{ack}})
		require.Equal(t, reasonOf(attach), reasonOf(err))
	}
	return attach
}
