// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

// A pause survives a failover, with its reason and time. Until the queue is resumed, publishes are rejected and
// consumers receive nothing. If a subscription was paused separately, it remains paused (INV-21).
func TestPauseSurvivesFailover(t *testing.T) { simulated(t, testPauseSurvivesFailover) }

func testPauseSurvivesFailover(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	active.createQueue("q")
	require.NoError(t, active.subscribeWith("q", "audit", nil))
	active.publish("q", "first")
	before := time.Now().Truncate(time.Millisecond)
	resp, err := active.queues.PauseQueue(t.Context(), &pb.PauseQueueRequest{Queue: "q", Reason: "maintenance"})
	require.NoError(t, err)
	pause := resp.GetQueue().GetPause()
	require.True(t, pause.GetPublish())
	require.True(t, pause.GetDeliver())
	require.Equal(t, "maintenance", pause.GetReason())
	require.False(t, pause.GetPausedAt().AsTime().Before(before))
	require.False(t, pause.GetPausedAt().AsTime().After(time.Now()))
	_, err = active.queues.PauseQueue(t.Context(), &pb.PauseQueueRequest{Queue: "q", Subscription: "audit"})
	require.NoError(t, err)
	active.stop()

	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	got, err := standby.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.True(t, proto.Equal(pause, got.GetQueue().GetPause()), got.GetQueue().GetPause())
	_, err = standby.queues.Publish(t.Context(), &pb.PublishRequest{
		Queue: "q", Messages: []*pb.Message{{Body: []byte("refused")}},
	})
	require.Equal(t, pb.ErrorReason_ERROR_REASON_QUEUE_PAUSED, reasonOf(err))
	_, err = standby.queues.Commit(t.Context(), &pb.CommitRequest{Operations: []*pb.Operation{{
		Kind: &pb.Operation_Publish{Publish: &pb.PublishOperation{
			Queue: "q", Messages: []*pb.Message{{Body: []byte("refused")}},
		}},
	}}})
	require.Equal(t, pb.ErrorReason_ERROR_REASON_QUEUE_PAUSED, reasonOf(err))
	standby.waitCondition(conditions.QueuesPaused, "", true)
	require.Equal(t, `"q"`, standby.condition(conditions.QueuesPaused, "").GetDetails())
	nothing := func(subscription string) {
		t.Helper()
		<-time.After(time.Second) // in simulated time: more than a delivery takes
		require.Zero(t, standby.subscription("q", subscription).GetInFlight())
	}
	c := standby.attach(&pb.Attach{Queue: "q", Subscription: "default"}, 5)
	audit := standby.attach(&pb.Attach{Queue: "q", Subscription: "audit"}, 5)
	nothing("default")

	_, err = standby.queues.ResumeQueue(t.Context(), &pb.ResumeQueueRequest{Queue: "q", Publish: true})
	require.NoError(t, err)
	standby.publish("q", "second")
	nothing("default")
	_, err = standby.queues.ResumeQueue(t.Context(), &pb.ResumeQueueRequest{Queue: "q"})
	require.NoError(t, err)
	require.Len(t, c.take(2), 2)
	nothing("audit")
	_, err = standby.queues.ResumeQueue(t.Context(), &pb.ResumeQueueRequest{Queue: "q", Subscription: "audit"})
	require.NoError(t, err)
	require.Len(t, audit.take(2), 2)
	standby.waitCondition(conditions.QueuesPaused, "", false)
}

// An invalid pause is rejected with a reason.
func TestInvalidPauses(t *testing.T) { simulated(t, testInvalidPauses) }

func testInvalidPauses(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	for name, c := range map[string]struct {
		req    *pb.PauseQueueRequest
		reason pb.ErrorReason
	}{
		"missing queue": {&pb.PauseQueueRequest{Queue: "none"}, pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND},
		"missing subscription": {
			&pb.PauseQueueRequest{Queue: "q", Subscription: "none"},
			pb.ErrorReason_ERROR_REASON_SUBSCRIPTION_NOT_FOUND,
		},
		"publishing of a subscription": {
			&pb.PauseQueueRequest{Queue: "q", Subscription: "default", Publish: true},
			pb.ErrorReason_ERROR_REASON_INVALID,
		},
		"long reason": {
			&pb.PauseQueueRequest{Queue: "q", Reason: string(make([]byte, 1025))}, pb.ErrorReason_ERROR_REASON_INVALID,
		},
	} {
		_, err := n.queues.PauseQueue(t.Context(), c.req)
		require.Error(t, err, name)
		require.Equal(t, c.reason, reasonOf(err))
	}
}
