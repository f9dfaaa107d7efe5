// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// waitSiteCondition waits until a node reports a condition or, if want is false, no longer reports it.
func waitSiteCondition(w *simpair.World, n *simpair.Node, k conditions.Kind, want bool) {
	w.T.Helper()
	w.Eventually(func() bool {
		st, err := n.Admin().GetStatus(w.T.Context(), &pb.GetStatusRequest{})
		if err != nil {
			return false
		}
		found := false
		for _, c := range st.GetConditions() {
			found = found || c.GetKind() == string(k)
		}
		return found == want
	}, "%s on %s, wanted: %v", k, n.Config.Node.Name, want)
}

// Each site reports if the other site does not respond. A former primary reports that it is superseded if it has
// transactions that the promoted site lacks.
func TestSiteConditions(t *testing.T) { simpair.Test(t, testSiteConditions) }

func testSiteConditions(t *testing.T, w *simpair.World) {
	east := w.Start(siteNodes(w, "east", []string{"e"}, []string{"w"})[0], node.Options{})
	west := w.Start(siteNodes(w, "west", []string{"w"}, []string{"e"})[0], node.Options{})
	east.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	west.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err := east.Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
	require.NoError(t, err)
	_, err = siteService(west).DemoteSite(t.Context(), &pb.DemoteSiteRequest{})
	require.NoError(t, err)
	waitReplicated(w, east, west)

	west.Kill()
	waitSiteCondition(w, east, conditions.SiteUnreachable, true)
	require.NoError(t, sitePublish(t.Context(), east, "q", "only in the east"))
	east.Kill()
	west = west.Restart()
	west.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	waitSiteCondition(w, west, conditions.SiteUnreachable, true)

	_, err = siteService(west).PromoteSite(t.Context(), &pb.PromoteSiteRequest{Reason: "test"})
	require.NoError(t, err)
	require.NoError(t, sitePublish(t.Context(), west, "q", "only in the west"))
	east = east.Restart()
	waitSite(w, east, pb.SiteRole_SITE_ROLE_STOPPED)
	waitSiteCondition(w, east, conditions.SupersededBySite, true)
	waitSiteCondition(w, east, conditions.SiteStopped, false)
	waitSiteCondition(w, west, conditions.SiteUnreachable, false)
	waitSiteCondition(w, west, conditions.TwoPrimaries, false)
}
