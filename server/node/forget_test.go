// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// If the source of a move is lost and removed from the fleet, the target ends the move: it keeps queues that it has
// taken, and cancels other moves. Names of the lost pair can then be used by other pairs. If the lost pair returns, it
// cannot create queues.
func TestForgetSourceOfMove(t *testing.T) {
	for step, taken := range map[string]bool{"copy": false, "messages": false, "drop": true} {
		t.Run(step, func(t *testing.T) {
			f := startMoveFleet(t)
			f.fill("a.q", 3)
			f.fill("a.other", 1)
			reached, release := f.steps.stopAt(step)
			epoch := f.move("a.q")
			<-reached
			_, err := f.mover().ForgetPair(t.Context(), &pb.ForgetPairRequest{Pair: "a"})
			require.Equal(t, codes.FailedPrecondition, status.Code(err), "the pair is live")
			f.a.stop()
			_, err = f.records.Delete(t.Context(), fleet.DefaultPrefix+"/load/a")
			require.NoError(t, err)
			release()
			require.Eventually(t, func() bool {
				resp, err := f.mover().ForgetPair(t.Context(), &pb.ForgetPairRequest{Pair: "a"})
				return err == nil && len(resp.GetWaiting()) == 0
			}, testTimeout, 20*time.Millisecond)
			f.ended(epoch)
			require.Eventually(t, func() bool { // in the copy of the directory
				st, err := f.mover().GetFleet(t.Context(), &pb.GetFleetRequest{})
				return err == nil && len(st.GetPairs()) == 1
			}, testTimeout, 20*time.Millisecond)

			f.place("a.*", "b")
			require.Eventually(t, func() bool {
				_, err := pb.NewQueueServiceClient(f.b.conn).CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "a.other"})
				return err == nil
			}, testTimeout, 20*time.Millisecond)
			q, err := pb.NewQueueServiceClient(f.b.conn).GetQueue(t.Context(), &pb.GetQueueRequest{Name: "a.q"})
			if taken {
				require.NoError(t, err)
				require.Equal(t, uint64(3), q.GetQueue().GetMessages())
			} else {
				require.Error(t, err)
			}

			f.a = f.restart(f.a)
			a := f.a.waitFleet(func(f *pb.FleetStatus) bool { return f.GetDirectoryCurrent() && f.GetProblem() != "" })
			require.Contains(t, a.GetProblem(), fleet.ErrForgotten.Error())
			_, err = pb.NewQueueServiceClient(f.a.conn).CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "a.new"})
			require.Equal(t, codes.FailedPrecondition, status.Code(err), "not active")
			kvs, err := f.records.Get(t.Context(), fleet.DefaultPrefix+"/queues/a.", clientv3.WithPrefix())
			require.NoError(t, err)
			for _, kv := range kvs.Kvs {
				require.NotContains(t, string(kv.Value), `"pair":"a"`, string(kv.Key))
			}
		})
	}
}

// If the target of a move is lost and removed from the fleet, the source serves the queues again, in their state at the
// fence, whether the target has taken them or not. Clients find them there. If the lost pair returns, it does not serve
// its queues.
func TestForgetTargetOfMove(t *testing.T) {
	for step, taken := range map[string]bool{"messages": false, "finish": true, "drop": true} {
		t.Run(step, func(t *testing.T) {
			f := startMoveFleet(t)
			ctx := t.Context()
			f.fill("a.q", 3)
			require.NoError(t, f.create("b.q", admin.CreateQueueOptions{}))
			reached, _ := f.steps.stopAt(step)
			user, err := client.OpenWith(ctx, client.Options{
				Addresses: []string{f.a.ready.Address}, ProbeInterval: 500 * time.Millisecond,
			})
			require.NoError(t, err)
			defer func() { require.NoError(t, user.Close()) }()
			consumer, err := user.Consume(ctx, "a.q", client.ConsumerOptions{})
			require.NoError(t, err)
			f.move("a.q")
			<-reached
			if taken {
				_, err := user.Publish(ctx, "a.q", message("lost"))
				require.NoError(t, err, "the client uses the target")
			}
			f.b.stop()
			_, err = f.records.Delete(ctx, fleet.DefaultPrefix+"/load/b")
			require.NoError(t, err)
			operator := pb.NewFleetServiceClient(f.a.conn)
			require.Eventually(t, func() bool {
				resp, err := operator.ForgetPair(ctx, &pb.ForgetPairRequest{Pair: "b"})
				return err == nil && len(resp.GetWaiting()) == 0
			}, testTimeout, 20*time.Millisecond)
			require.Eventually(t, func() bool {
				_, err := f.a.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: "a.q"})
				return err == nil
			}, testTimeout, 20*time.Millisecond, "the source serves the queue again")
			for acked := 0; acked < 3; {
				d, err := consumer.Receive(ctx)
				require.NoError(t, err)
				if d.AckSync(ctx) == nil { // not a delivery of an earlier owner
					acked++
				}
			}
			require.NoError(t, consumer.Close())
			f.client, f.admin = user, admin.New(user)
			_, err = f.client.Publish(ctx, "a.q", message("0"))
			require.NoError(t, err)
			f.drain("a.q", 1)

			f.b = f.restart(f.b)
			require.Eventually(t, func() bool {
				for _, queue := range []string{"a.q", "b.q"} {
					_, err := f.b.queues.Publish(ctx, &pb.PublishRequest{Queue: queue, Messages: batch("x")})
					if status.Code(err) != codes.FailedPrecondition {
						return false
					}
				}
				return true
			}, testTimeout, 20*time.Millisecond, "the pair was removed")
			f.a = f.restart(f.a)
			_, err = f.client.Publish(ctx, "a.q", message("0"))
			require.NoError(t, err)
			f.drain("a.q", 1)
		})
	}
}
