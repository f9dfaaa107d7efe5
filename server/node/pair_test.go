// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/config"
)

func (n *testNode) health(service string) healthpb.HealthCheckResponse_ServingStatus {
	n.t.Helper()
	resp, err := healthpb.NewHealthClient(n.conn).Check(n.t.Context(), &healthpb.HealthCheckRequest{Service: service})
	require.NoError(n.t, err)
	return resp.GetStatus()
}

func (n *testNode) status() *pb.GetStatusResponse {
	n.t.Helper()
	st, err := n.admin.GetStatus(n.t.Context(), &pb.GetStatusRequest{})
	require.NoError(n.t, err)
	return st
}

// Each client request to the standby fails with an error that contains the address of the active.
func TestStandbyRedirectsClients(t *testing.T) { simulated(t, testStandbyRedirectsClients) }

func testStandbyRedirectsClients(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	active.createQueue("q")
	q, ctx := standby.queues, t.Context()
	stream := func(s interface{ RecvMsg(any) error }, err error) error {
		require.NoError(t, err)
		return s.RecvMsg(&pb.ConsumeResponse{})
	}
	calls := map[string]func() error{
		"publish": func() error {
			_, err := q.Publish(ctx, &pb.PublishRequest{Queue: "q", Messages: batch("x")})
			return err
		},
		"create": func() error { _, err := q.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "r"}); return err },
		"get":    func() error { _, err := q.GetQueue(ctx, &pb.GetQueueRequest{Name: "q"}); return err },
		"list":   func() error { _, err := q.ListQueues(ctx, &pb.ListQueuesRequest{}); return err },
		"delete": func() error { _, err := q.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: "q"}); return err },
		"purge":  func() error { _, err := q.PurgeQueue(ctx, &pb.PurgeQueueRequest{Name: "q"}); return err },
		"alter":  func() error { _, err := q.AlterQueue(ctx, &pb.AlterQueueRequest{Name: "q"}); return err },
		"seek": func() error {
			_, err := q.SeekSubscription(ctx, toSequence("q", 1))
			return err
		},
		"replay": func() error {
			_, err := q.ReplayDeadLetters(ctx, &pb.ReplayDeadLettersRequest{Queue: "q"})
			return err
		},
		"move": func() error {
			_, err := q.MoveMessages(ctx, &pb.MoveMessagesRequest{Queue: "q", To: "r", Sequences: sequences(1)})
			return err
		},
		"remove": func() error {
			_, err := q.RemoveMessages(ctx, &pb.RemoveMessagesRequest{Queue: "q", Sequences: sequences(1)})
			return err
		},
		"forward": func() error {
			_, err := q.SetForwards(ctx, &pb.SetForwardsRequest{Queue: "q"})
			return err
		},
		"history": func() error {
			_, err := q.GetHistory(ctx, &pb.GetHistoryRequest{Queue: "q"})
			return err
		},
		"put policy": func() error {
			_, err := q.PutPolicy(ctx, &pb.PutPolicyRequest{
				Policy: &pb.QueuePolicy{Pattern: "q", Defaults: &pb.QueueConfig{MaxMessages: 1}},
			})
			return err
		},
		"delete policy": func() error {
			_, err := q.DeletePolicy(ctx, &pb.DeletePolicyRequest{Pattern: "q"})
			return err
		},
		"list policies": func() error {
			_, err := q.ListPolicies(ctx, &pb.ListPoliciesRequest{})
			return err
		},
		"pause": func() error {
			_, err := q.PauseQueue(ctx, &pb.PauseQueueRequest{Queue: "q"})
			return err
		},
		"resume": func() error {
			_, err := q.ResumeQueue(ctx, &pb.ResumeQueueRequest{Queue: "q"})
			return err
		},
		"put schedule": func() error {
			_, err := standby.schedules().PutSchedule(ctx, &pb.PutScheduleRequest{Schedule: &pb.Schedule{
				Name: "s", Queue: "q", Cron: "@daily",
			}})
			return err
		},
		"delete schedule": func() error {
			_, err := standby.schedules().DeleteSchedule(ctx, &pb.DeleteScheduleRequest{Name: "s"})
			return err
		},
		"pause schedule": func() error {
			_, err := standby.schedules().SetSchedulePaused(ctx, &pb.SetSchedulePausedRequest{Name: "s"})
			return err
		},
		"run schedule": func() error {
			_, err := standby.schedules().RunSchedule(ctx, &pb.RunScheduleRequest{Name: "s"})
			return err
		},
		"get schedule": func() error {
			_, err := standby.schedules().GetSchedule(ctx, &pb.GetScheduleRequest{Name: "s"})
			return err
		},
		"list schedules": func() error {
			_, err := standby.schedules().ListSchedules(ctx, &pb.ListSchedulesRequest{})
			return err
		},
		"commit": func() error {
			_, err := q.Commit(ctx, &pb.CommitRequest{Operations: []*pb.Operation{ackOp("q", 1, 1)}})
			return err
		},
		"prepare":           func() error { return standby.prepare("x", ackOp("q", 1, 1)) },
		"commit prepared":   func() error { return standby.commitPrepared("x") },
		"rollback prepared": func() error { return standby.rollbackPrepared("x") },
		"grant": func() error {
			_, err := standby.access().Grant(ctx, &pb.GrantRequest{Rule: &pb.AccessRule{
				Principal: "anonymous", Rights: []pb.AccessRight{mayOperate},
			}})
			return err
		},
		"list access": func() error {
			_, err := standby.access().ListAccess(ctx, &pb.ListAccessRequest{})
			return err
		},
		"list prepared": func() error {
			_, err := q.ListPrepared(ctx, &pb.ListPreparedRequest{})
			return err
		},
		"subscribe": func() error {
			_, err := q.CreateSubscription(ctx, &pb.CreateSubscriptionRequest{Queue: "q", Name: "s"})
			return err
		},
		"alter subscription": func() error {
			_, err := standby.alterSubscription("q", "default", "", nil, "filter")
			return err
		},
		"unsubscribe": func() error {
			_, err := q.DeleteSubscription(ctx, &pb.DeleteSubscriptionRequest{Queue: "q", Name: "default"})
			return err
		},
		"browse":         func() error { return stream(q.Browse(ctx, &pb.BrowseRequest{Queue: "q"})) },
		"consume":        func() error { return stream(q.Consume(ctx)) },
		"publish stream": func() error { return stream(q.PublishStream(ctx)) },
	}
	const ofAccess = 2 // one change and one read, as examples of the service
	require.Len(t, calls, len(pb.QueueService_ServiceDesc.Methods)+len(pb.QueueService_ServiceDesc.Streams)+
		len(pb.ScheduleService_ServiceDesc.Methods)+ofAccess)
	for name, call := range calls {
		section(t, name, func(t *testing.T) {
			err := call()
			require.Equal(t, codes.FailedPrecondition, status.Code(err))
			var notActive *apierror.NotActiveError
			require.ErrorAs(t, kind(err), &notActive)
			require.Equal(t, active.ready.Advertise, notActive.ActiveAddress)
			require.Equal(t, active.ready.NodeID, notActive.ActiveNode)
			require.Equal(t, "STANDBY", notActive.Role)
			require.NotZero(t, notActive.RetryAfter)
		})
	}
}

// The health of the queue service is SERVING only on the active. Reflection lists the services of each node.
func TestHealthAndReflection(t *testing.T) { simulated(t, testHealthAndReflection) }

func testHealthAndReflection(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	const queues = "lockstep.v1.QueueService"
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, active.health(""))
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, active.health(queues))
	require.Equal(t, healthpb.HealthCheckResponse_SERVING, standby.health(""))
	require.Equal(t, healthpb.HealthCheckResponse_NOT_SERVING, standby.health(queues))

	stream, err := reflectionpb.NewServerReflectionClient(standby.conn).ServerReflectionInfo(t.Context())
	require.NoError(t, err)
	require.NoError(t, stream.Send(&reflectionpb.ServerReflectionRequest{
		MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{},
	}))
	resp, err := stream.Recv()
	require.NoError(t, err)
	var names []string
	for _, s := range resp.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	for _, want := range []string{
		queues, "lockstep.v1.AdminService", "lockstep.v1.ReplicationService",
		"grpc.health.v1.Health",
	} {
		require.Contains(t, names, want)
	}
	active.stop()
	require.Eventually(t, func() bool { return standby.health(queues) == healthpb.HealthCheckResponse_SERVING },
		testTimeout, 5*time.Millisecond)
}

// The status contains the pair, the store and the role of the node. Only the active reports the standby.
func TestStatus(t *testing.T) { simulated(t, testStatus) }

func testStatus(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	active.createQueue("q")
	active.publish("q", "x")
	require.Eventually(t, func() bool {
		return standby.status().GetStore().GetAppliedLsn() == active.status().GetStore().GetAppliedLsn()
	}, testTimeout, 5*time.Millisecond)
	st := active.status()
	require.Equal(t, "test", st.GetVersion())
	require.Equal(t, "etcd", st.GetPair().GetCoordinator())
	require.True(t, st.GetPair().GetCoordinatorReachable())
	require.Len(t, st.GetPair().GetNodes(), 2)
	require.True(t, st.GetNode().GetActive() && st.GetNode().GetInSync() && st.GetNode().GetLive())
	require.Equal(t, "a", st.GetNode().GetName())
	require.Equal(t, uint64(1), st.GetStore().GetMessages())
	require.Equal(t, uint64(1), st.GetStore().GetQueues())
	require.Equal(t, "always", st.GetStore().GetSync())
	require.Equal(t, "in-sync", st.GetStandby().GetState())
	require.Equal(t, standby.ready.NodeID, st.GetStandby().GetNodeId())
	other := standby.status()
	require.Nil(t, other.GetStandby())
	require.False(t, other.GetNode().GetActive())
	require.True(t, other.GetNode().GetInSync())
	require.Equal(t, st.GetPair().GetPairId(), other.GetPair().GetPairId())
}

// If a node loses the active role, its clients are redirected to the new active immediately.
func TestRoleLossRedirectsClients(t *testing.T) { simulated(t, testRoleLossRedirectsClients) }

func testRoleLossRedirectsClients(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	active.createQueue("q")
	active.publish("q", "1", "2")
	c := active.consume("q", 10)
	c.take(2)
	publisher, err := active.queues.PublishStream(t.Context())
	require.NoError(t, err)
	watch, err := standby.admin.WatchStatus(t.Context(), &pb.WatchStatusRequest{})
	require.NoError(t, err)

	result, err := standby.admin.Switchover(t.Context(), &pb.SwitchoverRequest{Timeout: durationpb.New(testTimeout)})
	require.NoError(t, err)
	require.Equal(t, standby.ready.NodeID, result.GetActiveNode())
	require.Equal(t, standby.ready.Advertise, result.GetActiveAddress())
	t.Logf("the switchover paused commits for %s", result.GetPause().AsDuration())

	for name, recv := range map[string]func() error{
		"consumer":  func() error { return c.stream.RecvMsg(&pb.ConsumeResponse{}) },
		"publisher": func() error { return publisher.RecvMsg(&pb.PublishStreamResponse{}) },
	} {
		var notActive *apierror.NotActiveError
		require.ErrorAs(t, kind(recv()), &notActive, name)
		require.Equal(t, standby.ready.Advertise, notActive.ActiveAddress, name)
	}
	for {
		st, err := watch.Recv()
		require.NoError(t, err)
		if role := st.GetStatus().GetRole(); role == pb.Role_ROLE_ACTIVE {
			break
		}
	}
	active.waitFor(pb.Role_ROLE_STANDBY)
	again := standby.consume("q", 10).take(2)
	require.Equal(t, []string{"1", "2"}, bodies(again), "unacknowledged messages are delivered by the new active")

	// Switch back. This request is sent to the active.
	_, err = standby.admin.Switchover(t.Context(), &pb.SwitchoverRequest{})
	require.NoError(t, err)
	active.waitFor(pb.Role_ROLE_ACTIVE)
	active.publish("q", "3")
}

// A retry on the new active returns the result that the old active has committed (INV-10).
func TestRetryAcrossTakeover(t *testing.T) { simulated(t, testRetryAcrossTakeover) }

func testRetryAcrossTakeover(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	active.createQueue("q")
	req := &pb.PublishRequest{Queue: "q", Messages: batch("x"), Producer: &pb.Producer{Id: "p", Sequence: 1}}
	first, err := active.queues.Publish(t.Context(), req)
	require.NoError(t, err)
	active.stop()
	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	again, err := standby.queues.Publish(t.Context(), req)
	require.NoError(t, err)
	require.True(t, again.GetDuplicate())
	require.Equal(t, first.GetFirstSequence(), again.GetFirstSequence())
	require.Equal(t, first.GetLsn(), again.GetLsn())
}

// Both nodes can write a checkpoint and check their stores.
func TestCheckpointAndCheck(t *testing.T) { simulated(t, testCheckpointAndCheck) }

func testCheckpointAndCheck(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	active.createQueue("q")
	for i := range 100 {
		active.publish("q", fmt.Sprint(i))
	}
	for _, n := range []*testNode{active, standby} {
		require.Eventually(t, func() bool { return n.status().GetStore().GetMessages() == 100 }, testTimeout,
			5*time.Millisecond)
		cp, err := n.admin.Checkpoint(t.Context(), &pb.CheckpointRequest{})
		require.NoError(t, err)
		require.NotZero(t, cp.GetLsn())
		stream, err := n.admin.Check(t.Context(), &pb.CheckRequest{})
		require.NoError(t, err)
		var last *pb.CheckResponse
		for {
			resp, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err)
			last = resp
		}
		require.True(t, last.GetFinished())
		require.Empty(t, last.GetProblems())
		require.Equal(t, uint64(100), last.GetMessages())
	}
}

// A switchover is refused on a standalone node, without a standby, and with an invalid timeout.
func TestSwitchoverRefused(t *testing.T) { simulated(t, testSwitchoverRefused) }

func testSwitchoverRefused(t *testing.T) {
	n := startAlone(t, nil)
	_, err := n.admin.Switchover(t.Context(), &pb.SwitchoverRequest{})
	require.ErrorIs(t, kind(err), failover.ErrSwitchover)
	require.Contains(t, err.Error(), "standalone")
	_, err = n.admin.Switchover(t.Context(), &pb.SwitchoverRequest{Timeout: durationpb.New(-1)})
	require.ErrorIs(t, kind(err), apierror.ErrInvalid)
	require.Nil(t, n.status().GetPair())

	etcd := startEtcd(t)
	single := start(t, settingsOfPair(t, "a", etcd))
	single.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	_, err = single.admin.Switchover(t.Context(), &pb.SwitchoverRequest{Timeout: durationpb.New(time.Second)})
	require.Error(t, err)
}

// With min_in_sync 2, a single node refuses writes with a reason. It accepts writes when two nodes are in sync.
func TestMinInSyncOfTwo(t *testing.T) { simulated(t, testMinInSyncOfTwo) }

func testMinInSyncOfTwo(t *testing.T) {
	etcd := startEtcd(t)
	two := func(name string) config.Config {
		c := settingsOfPair(t, name, etcd)
		c.MinInSync = 2
		return c
	}
	a := start(t, two("a"))
	require.Eventually(t, func() bool { return strings.Contains(a.status().GetReason(), "min_in_sync") }, testTimeout,
		5*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	_, err := a.queues.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "q"})
	require.Error(t, err)
	require.Contains(t, err.Error(), "min_in_sync")
	b := start(t, two("b"))
	b.waitFor(pb.Role_ROLE_STANDBY)
	a.waitFor(pb.Role_ROLE_ACTIVE)
	a.createQueue("q")
	before := publishing(t, a)
	require.NoError(t, before.Send(publishAs(7)))
	_, err = before.Recv()
	require.NoError(t, err)
	b.stop()
	a.waitFor(pb.Role_ROLE_BLOCKED)
	_, err = a.queues.Publish(ctx, &pb.PublishRequest{Queue: "q", Messages: batch("x")})
	require.Equal(t, codes.Unavailable, status.Code(err))
	// The status of a stream contains the last publish that was submitted.
	require.NoError(t, before.Send(publishAs(8)))
	requireSubmitted(t, before, 7)
	another := publishing(t, a)
	require.NoError(t, another.Send(publishAs(9)))
	requireSubmitted(t, another, 0)
	require.Equal(t, uint64(1), a.status().GetStore().GetMessages())
}
