// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// Both nodes of a primary retain site.keep-bytes of log for a disconnected replica.
func TestSiteKeepBytes(t *testing.T) {
	for name, keep := range map[string]config.Size{"not set": 0, "enough": 64 << 20, "not enough": 2 << 20} {
		t.Run(name, func(t *testing.T) {
			simpair.Test(t, func(t *testing.T, w *simpair.World) { testSiteKeepBytes(t, w, keep) })
		})
	}
}

func testSiteKeepBytes(t *testing.T, w *simpair.World, keep config.Size) {
	var east []*simpair.Node
	for i, c := range siteNodes(w, "east", []string{"east-a", "east-b"}, []string{"west"}) {
		c.WAL.KeepBytes, c.Site.KeepBytes = 0, keep
		east = append(east, w.Start(c, node.Options{}))
		if i == 0 {
			east[0].WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
		}
	}
	w.WaitInSync(east[0], east[1])
	west := w.Start(siteNodes(w, "west", []string{"west"}, []string{"east-a", "east-b"})[0], node.Options{})
	west.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err := east[0].Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
	require.NoError(t, err)
	_, err = siteService(west).DemoteSite(t.Context(), &pb.DemoteSiteRequest{})
	require.NoError(t, err)
	waitReplicated(w, east[0], west)
	cut := func(is bool) {
		for _, n := range east {
			w.Net.SetCut(n.Host(), west.Host(), is)
		}
	}
	cut(true)
	for range 8 { // several segments that later checkpoints do not need
		require.NoError(t, sitePublish(t.Context(), east[0], "q", strings.Repeat("x", 900<<10)))
		for _, n := range east {
			_, err := n.Admin().Checkpoint(t.Context(), &pb.CheckpointRequest{})
			require.NoError(t, err)
		}
	}
	<-time.After(time.Minute)
	east[0].Kill()
	east[1].WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	cut(false)
	if keep != 64<<20 {
		waitSiteCondition(w, west, conditions.SiteBehind, true)
		return
	}
	waitReplicated(w, east[1], west)
	require.Equal(t, contentOf(t, east[1]), contentOf(t, west))
}
