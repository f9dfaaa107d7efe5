// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// A schedule runs only at the primary. After a switch, it continues at the new primary.
func TestScheduleOfSites(t *testing.T) { simpair.Test(t, testScheduleOfSites) }

func testScheduleOfSites(t *testing.T, w *simpair.World) {
	east := w.Start(siteNodes(w, "east", []string{"e"}, []string{"w"})[0], node.Options{})
	west := w.Start(siteNodes(w, "west", []string{"w"}, []string{"e"})[0], node.Options{})
	east.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	west.WaitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err := east.Queues().CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"})
	require.NoError(t, err)
	_, err = siteService(west).DemoteSite(t.Context(), &pb.DemoteSiteRequest{})
	require.NoError(t, err)
	_, err = pb.NewScheduleServiceClient(east.Conn()).PutSchedule(t.Context(), &pb.PutScheduleRequest{
		Schedule: &pb.Schedule{
			Name: "tick", Queue: "q", Every: durationpb.New(time.Second), Message: &pb.Message{Body: []byte("tick")},
		},
	})
	require.NoError(t, err)
	published := func(n *simpair.Node) uint64 {
		resp, err := n.Admin().GetQueueDigests(t.Context(), &pb.GetQueueDigestsRequest{})
		require.NoError(t, err)
		require.Len(t, resp.GetQueues(), 1)
		return resp.GetQueues()[0].GetNextSequence() - 1
	}
	<-time.After(3500 * time.Millisecond)
	require.EqualValues(t, 3, published(east))
	waitReplicated(w, east, west)
	require.EqualValues(t, 3, published(west))
	_, err = siteService(east).SwitchSite(t.Context(), &pb.SwitchSiteRequest{})
	require.NoError(t, err)
	<-time.After(3 * time.Second)
	require.EqualValues(t, 6, published(west))
	waitReplicated(w, west, east)
	require.EqualValues(t, 6, published(east))
}
