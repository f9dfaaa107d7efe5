// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Policies apply to existing queues and, after a failover, to new queues. Options set on a queue take precedence
// over defaults, and limits take precedence over both (INV-25).
func TestPoliciesSurviveFailover(t *testing.T) { simulated(t, testPoliciesSurviveFailover) }

func testPoliciesSurviveFailover(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	for _, name := range []string{"orders.dead", "orders.eu", "orders.own"} {
		active.createQueue(name)
	}
	put := func(n *testNode, p *pb.QueuePolicy) {
		t.Helper()
		resp, err := n.queues.PutPolicy(t.Context(), &pb.PutPolicyRequest{Policy: p})
		require.NoError(t, err)
		require.True(t, proto.Equal(p, resp.GetPolicy()), resp.GetPolicy())
	}
	orders := &pb.QueuePolicy{
		Pattern: "orders.*", Priority: 10, Limits: &pb.QueueConfig{},
		Defaults: &pb.QueueConfig{
			MaxDeliveries: 5, DeadLetter: "orders.dead", MaxMessages: 100, Ttl: durationpb.New(time.Hour),
			Overflow: pb.Overflow_OVERFLOW_DEAD_LETTER_HEAD,
		},
	}
	all := &pb.QueuePolicy{Pattern: "*", Defaults: &pb.QueueConfig{}, Limits: &pb.QueueConfig{MaxMessages: 10}}
	put(active, orders)
	put(active, all)
	alter := func(n *testNode, req *pb.AlterQueueRequest) *pb.Queue {
		t.Helper()
		resp, err := n.queues.AlterQueue(t.Context(), req)
		require.NoError(t, err)
		return resp.GetQueue()
	}
	own := alter(active, &pb.AlterQueueRequest{
		Name: "orders.own", Config: &pb.QueueConfig{MaxDeliveries: 2},
		UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"max_deliveries", "ttl"}},
	})
	require.Equal(t, uint32(2), own.GetConfig().GetMaxDeliveries())
	require.Nil(t, own.GetConfig().GetTtl(), "0 is explicit")
	require.True(t, proto.Equal(&pb.QueueSources{
		Own: &pb.QueueConfig{MaxDeliveries: 2}, OwnFields: []string{"max_deliveries", "ttl"}, Policy: "orders.*",
		LimitPolicy: "*", LimitedFields: []string{"max_messages"},
	}, own.GetSources()), own.GetSources())
	active.stop()

	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	queue := func(name string) *pb.Queue {
		t.Helper()
		resp, err := standby.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: name})
		require.NoError(t, err)
		return resp.GetQueue()
	}
	require.True(t, proto.Equal(own.GetConfig(), queue("orders.own").GetConfig()))
	standby.createQueue("orders.us")
	want := &pb.QueueConfig{
		MaxDeliveries: 5, DeadLetter: "orders.dead", MaxMessages: 10, Ttl: durationpb.New(time.Hour),
		Overflow: pb.Overflow_OVERFLOW_DEAD_LETTER_HEAD,
	}
	for _, name := range []string{"orders.eu", "orders.us"} {
		require.True(t, proto.Equal(want, queue(name).GetConfig()), queue(name).GetConfig())
	}
	dead := queue("orders.dead").GetConfig()
	require.True(t, proto.Equal(&pb.QueueConfig{MaxMessages: 10, Ttl: durationpb.New(time.Hour)}, dead), dead)
	list, err := standby.queues.ListPolicies(t.Context(), &pb.ListPoliciesRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetPolicies(), 2)
	require.True(t, proto.Equal(all, list.GetPolicies()[0]))
	require.True(t, proto.Equal(orders, list.GetPolicies()[1]))

	for range 12 { // the oldest messages overflow to the dead-letter queue of the policy
		standby.publish("orders.us", "x")
	}
	for queue("orders.dead").GetMessages() < 2 {
		<-time.After(100 * time.Millisecond)
	}
	reset := alter(standby, &pb.AlterQueueRequest{Name: "orders.own", ResetFields: []string{"ttl", "max_deliveries"}})
	require.True(t, proto.Equal(want, reset.GetConfig()), reset.GetConfig())
	_, err = standby.queues.DeleteQueue(t.Context(), &pb.DeleteQueueRequest{Name: "orders.dead"})
	require.Equal(t, pb.ErrorReason_ERROR_REASON_QUEUE_IN_USE, reasonOf(err))
	for _, pattern := range []string{"*", "orders.*"} {
		_, err := standby.queues.DeletePolicy(t.Context(), &pb.DeletePolicyRequest{Pattern: pattern})
		require.NoError(t, err)
	}
	require.True(t, proto.Equal(&pb.QueueConfig{}, queue("orders.us").GetConfig()))
	require.Nil(t, queue("orders.us").GetSources())
}

// An invalid policy, and an invalid reset of fields, is rejected with a reason.
func TestInvalidPolicies(t *testing.T) { simulated(t, testInvalidPolicies) }

func testInvalidPolicies(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	one := &pb.QueueConfig{MaxMessages: 1}
	for name, c := range map[string]struct {
		policy *pb.QueuePolicy
		reason pb.ErrorReason
	}{
		"no pattern":      {&pb.QueuePolicy{Defaults: one}, pb.ErrorReason_ERROR_REASON_INVALID_NAME},
		"invalid pattern": {&pb.QueuePolicy{Pattern: "a b", Defaults: one}, pb.ErrorReason_ERROR_REASON_INVALID_NAME},
		"no option":       {&pb.QueuePolicy{Pattern: "q"}, pb.ErrorReason_ERROR_REASON_INVALID},
		"priority": {
			&pb.QueuePolicy{Pattern: "q", Priority: 1_000_001, Defaults: one}, pb.ErrorReason_ERROR_REASON_INVALID,
		},
		"fixed option": {
			&pb.QueuePolicy{Pattern: "q", Defaults: &pb.QueueConfig{Priorities: true}},
			pb.ErrorReason_ERROR_REASON_INVALID,
		},
		"limit of another option": {
			&pb.QueuePolicy{Pattern: "q", Limits: &pb.QueueConfig{RetentionBytes: 1}},
			pb.ErrorReason_ERROR_REASON_INVALID,
		},
		"missing dead-letter queue": {
			&pb.QueuePolicy{Pattern: "q", Defaults: &pb.QueueConfig{DeadLetter: "none"}},
			pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND,
		},
	} {
		_, err := n.queues.PutPolicy(t.Context(), &pb.PutPolicyRequest{Policy: c.policy})
		require.Error(t, err, name)
		require.Equal(t, c.reason, reasonOf(err), name)
	}
	_, err := n.queues.DeletePolicy(t.Context(), &pb.DeletePolicyRequest{Pattern: "q"})
	require.Equal(t, pb.ErrorReason_ERROR_REASON_POLICY_NOT_FOUND, reasonOf(err))
	for _, req := range []*pb.AlterQueueRequest{
		{Name: "q", ResetFields: []string{"none"}},
		{Name: "q", ResetFields: []string{"ttl"}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"ttl"}}},
	} {
		_, err := n.queues.AlterQueue(t.Context(), req)
		require.Equal(t, pb.ErrorReason_ERROR_REASON_INVALID, reasonOf(err))
	}
}
