// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// missing reports whether a queue does not exist.
func (n *testNode) missing(name string) bool {
	n.t.Helper()
	_, err := n.queues.GetQueue(n.t.Context(), &pb.GetQueueRequest{Name: name})
	return errors.Is(kind(err), txn.ErrQueueNotFound)
}

// A temporary queue exists while it has a consumer. After a switchover, the consumer can reattach within the grace
// period. Without a consumer, the queue is deleted on both nodes, unless it was made durable.
func TestTemporaryQueue(t *testing.T) { simulated(t, testTemporaryQueue) }

func testTemporaryQueue(t *testing.T) {
	const grace = 2 * time.Second
	active, standby := startPair(t, startEtcd(t))
	temporary := &pb.QueueConfig{TemporaryGrace: durationpb.New(grace)}
	for _, name := range []string{"used", "unused", "kept"} {
		require.NoError(t, active.createWith(name, temporary))
	}
	require.NoError(t, active.alter("kept", &pb.QueueConfig{}, "temporary_grace"))
	c := active.consume("used", 10)
	active.publish("used", "1")
	require.Len(t, c.take(1), 1)
	require.Eventually(t, func() bool { return active.missing("unused") }, testTimeout, 20*time.Millisecond)
	require.False(t, active.missing("used"), "it has a consumer")

	begin := time.Now()
	_, err := standby.admin.Switchover(t.Context(), &pb.SwitchoverRequest{})
	require.NoError(t, err)
	standby.waitFor(pb.Role_ROLE_ACTIVE)
	c = standby.consume("used", 10)
	require.Len(t, c.take(1), 1, "the queue exists after the switchover")
	<-time.After(time.Until(begin.Add(grace + time.Second))) // after the grace period on the new active
	require.False(t, standby.missing("used"))
	standby.publish("used", "2")
	require.Len(t, c.take(1), 1)

	require.NoError(t, c.stream.CloseSend())
	require.Eventually(t, func() bool { return standby.missing("used") }, testTimeout, 20*time.Millisecond)
	require.False(t, standby.missing("kept"))
	require.Eventually(t, func() bool { return active.status().GetStore().GetQueues() == 1 }, testTimeout,
		20*time.Millisecond, "on the other node, too")
}
