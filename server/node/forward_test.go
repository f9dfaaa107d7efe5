// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/delivery/filter"
	"github.com/lockstep-mq/lockstep/store/txn"
)

func (n *testNode) forward(queue string, forwards ...*pb.Forward) error {
	n.t.Helper()
	_, err := n.queues.SetForwards(n.t.Context(), &pb.SetForwardsRequest{Queue: queue, Forwards: forwards})
	return err
}

// bodies returns the bodies of all messages in a queue.
func (n *testNode) bodies(queue string) (all []string) {
	n.t.Helper()
	for _, m := range n.browse(queue) {
		all = append(all, string(m.GetMessage().GetBody()))
	}
	return all
}

// Messages published in each of the three ways are forwarded once according to the rules, even if the publish is
// retried. The rules survive a failover.
func TestForwards(t *testing.T) { simulated(t, testForwards) }

func testForwards(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	for _, name := range []string{"orders", "audit", "eu"} {
		active.createQueue(name)
	}
	rules := []*pb.Forward{{To: "audit"}, {To: "eu", Move: true, Filter: `properties.region == "eu"`}}
	require.NoError(t, active.forward("orders", rules...))
	in := func(region string, bodies ...string) []*pb.Message {
		messages := batch(bodies...)
		for _, m := range messages {
			m.Properties = map[string]string{"region": region}
		}
		return messages
	}
	req := &pb.PublishRequest{
		Queue: "orders", Messages: append(in("eu", "1"), in("us", "2")...), Producer: &pb.Producer{Id: "p", Sequence: 1},
	}
	for range 2 {
		resp, err := active.queues.Publish(t.Context(), req)
		require.NoError(t, err)
		require.Equal(t, uint64(1), resp.GetFirstSequence())
		req.Producer.Retry = true
	}
	stream, err := active.queues.PublishStream(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&pb.PublishStreamRequest{
		Correlation: 1, Publish: &pb.PublishRequest{Queue: "orders", Messages: in("eu", "3")},
	}))
	response, err := stream.Recv()
	require.NoError(t, err)
	require.Equal(t, uint64(3), response.GetPublished().GetFirstSequence())
	commit := &pb.CommitRequest{
		Operations: []*pb.Operation{publishOp("orders", "4"), publishOp("audit", "5")},
		Producer:   &pb.Producer{Id: "p", Sequence: 2},
	}
	for range 2 {
		resp, err := active.queues.Commit(t.Context(), commit)
		require.NoError(t, err)
		require.Len(t, resp.GetResults(), 2)
		require.Equal(t, uint64(4), resp.GetResults()[0].GetFirstSequence())
		commit.Producer.Retry = true
	}
	check := func(n *testNode) {
		require.Equal(t, []string{"2", "4"}, n.bodies("orders"))
		require.Equal(t, []string{"1", "2", "3", "4", "5"}, n.bodies("audit"))
		require.Equal(t, []string{"1", "3"}, n.bodies("eu"))
	}
	check(active)
	active.stop()
	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	check(standby)
	standby.publish("orders", "6")
	require.Len(t, standby.bodies("audit"), 6, "the rules survive the failover")
}

// Invalid forwards are rejected with a reason, and nothing is changed or stored.
func TestInvalidForwards(t *testing.T) { simulated(t, testInvalidForwards) }

func testInvalidForwards(t *testing.T) {
	n := startAlone(t, nil)
	for _, name := range []string{"a", "b", "c"} {
		n.createQueue(name)
	}
	require.NoError(t, n.createWith("full", &pb.QueueConfig{MaxMessages: 1}))
	many := make([]*pb.Forward, txn.MaxForwards+1)
	for i := range many {
		many[i] = &pb.Forward{To: "b"}
	}
	require.NoError(t, n.forward("a", &pb.Forward{To: "b"}))
	for name, tc := range map[string]struct {
		err  error
		want error
		text string
	}{
		"itself":         {n.forward("c", &pb.Forward{To: "c"}), txn.ErrForwardChain, "first one"},
		"chain":          {n.forward("b", &pb.Forward{To: "c"}), txn.ErrForwardChain, "first one"},
		"to a chain":     {n.forward("c", &pb.Forward{To: "a"}), txn.ErrForwardChain, "first one"},
		"duplicate":      {n.forward("c", &pb.Forward{To: "b"}, &pb.Forward{To: "b"}), txn.ErrForwardChain, "combine"},
		"unknown target": {n.forward("c", &pb.Forward{To: "x"}), txn.ErrQueueNotFound, `"x"`},
		"unknown source": {n.forward("x", &pb.Forward{To: "c"}), txn.ErrQueueNotFound, `"x"`},
		"too many":       {n.forward("c", many...), apierror.ErrInvalid, "16"},
		"invalid filter": {n.forward("c", &pb.Forward{To: "b", Filter: "size >"}), filter.ErrInvalid, "1:7"},
		"filter type":    {n.forward("c", &pb.Forward{To: "b", Filter: "size"}), filter.ErrInvalid, "bool"},
		"long filter": {
			n.forward("c", &pb.Forward{To: "b", Filter: strings.Repeat("1", 4097)}), filter.ErrInvalid, "4096",
		},
		"empty target": {n.forward("c", &pb.Forward{}), txn.ErrInvalidName, "empty"},
	} {
		require.ErrorIs(t, kind(tc.err), tc.want, "%s: %v", name, tc.err)
		require.Contains(t, tc.err.Error(), tc.text, name)
	}
	_, err := n.queues.DeleteQueue(t.Context(), &pb.DeleteQueueRequest{Name: "b"})
	require.ErrorIs(t, kind(err), txn.ErrQueueInUse)
	require.NoError(t, n.forward("c", &pb.Forward{To: "full"}))
	n.publish("c", "1")
	_, err = n.queues.Publish(t.Context(), &pb.PublishRequest{Queue: "c", Messages: batch("2")})
	require.ErrorIs(t, kind(err), txn.ErrQueueFull)
	require.Equal(t, []string{"1"}, n.bodies("c"), "a publish is stored in both queues or in none")
	require.NoError(t, n.forward("c"))
	n.publish("c", "2")
	require.NoError(t, n.forward("a"))
	_, err = n.queues.DeleteQueue(t.Context(), &pb.DeleteQueueRequest{Name: "b"})
	require.NoError(t, err)
}
