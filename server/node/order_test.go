// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/txn"
)

func (n *testNode) publishAll(queue string, messages ...*pb.Message) {
	n.t.Helper()
	_, err := n.queues.Publish(n.t.Context(), &pb.PublishRequest{Queue: queue, Messages: messages})
	require.NoError(n.t, err)
}

func sequencesOf(messages []*pb.StoredMessage) []uint64 {
	list := make([]uint64, 0, len(messages))
	for _, m := range messages {
		list = append(list, m.GetSequence())
	}
	return list
}

func priority(p uint32) *pb.Message { return &pb.Message{Priority: &p} }
func grouped(g string) *pb.Message  { return &pb.Message{Group: g} }

// A message with a high priority is delivered next, regardless of the backlog before it, even after a failover.
// LOCKSTEP_BACKLOG is the number of messages in the backlog.
func TestPriorities(t *testing.T) { simulated(t, testPriorities) }

func testPriorities(t *testing.T) {
	backlog := 3000
	if env := os.Getenv("LOCKSTEP_BACKLOG"); env != "" {
		var err error
		backlog, err = strconv.Atoi(env)
		require.NoError(t, err)
	}
	active, standby := startPair(t, startEtcd(t))
	require.NoError(t, active.createWith("q", &pb.QueueConfig{Priorities: true}))
	low := make([]*pb.Message, 1000)
	for i := range low {
		low[i] = priority(1)
	}
	for range backlog / len(low) {
		active.publishAll("q", low...)
	}
	c := active.consume("q", 3)
	require.Equal(t, []uint64{1, 2, 3}, sequencesOf(c.take(3)))
	active.publishAll("q", priority(9))
	begin := time.Now()
	require.NoError(t, c.stream.Send(&pb.ConsumeRequest{Credit: 2}))
	require.Equal(t, []uint64{uint64(backlog + 1), 4}, sequencesOf(c.take(2)))
	t.Logf("the message behind %d others was delivered after %v", backlog, time.Since(begin))
	// The priorities setting of a queue cannot be altered.
	err := active.alter("q", &pb.QueueConfig{}, "priorities")
	require.ErrorIs(t, kind(err), txn.ErrPrioritiesFixed)
	active.createQueue("plain")
	err = active.alter("plain", &pb.QueueConfig{Priorities: true}, "priorities")
	require.ErrorIs(t, kind(err), txn.ErrPrioritiesFixed)

	active.stop()
	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	c = standby.consume("q", 2)
	require.Equal(t, []uint64{uint64(backlog + 1), 1}, sequencesOf(c.take(2)), "nothing was acknowledged")
}

// After a failover, a group continues with its first unacknowledged message. At most one message of the group is in
// flight.
func TestGroupsAcrossTakeover(t *testing.T) { simulated(t, testGroupsAcrossTakeover) }

func testGroupsAcrossTakeover(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	active.createQueue("q")
	x, y := active.consume("q", 10), active.consume("q", 10)
	active.publishAll("q", grouped("a"), grouped("a"), grouped("a"), grouped("b"))
	require.Equal(t, []uint64{1}, sequencesOf(x.take(1)))
	require.Equal(t, []uint64{4}, sequencesOf(y.take(1)), "the other group belongs to the other consumer")
	x.confirm(&pb.ConsumeRequest{Nack: []*pb.SequenceRange{{First: 1, Last: 1}}, Confirm: 1})
	got := x.take(1)
	require.Equal(t, []uint64{1}, sequencesOf(got), "it blocks its group until it is acknowledged")
	require.Equal(t, uint32(1), got[0].GetDeliveryCount())
	x.confirm(&pb.ConsumeRequest{Ack: span(1, 1), Confirm: 2})
	require.Equal(t, []uint64{2}, sequencesOf(x.take(1)))

	active.stop()
	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	z := standby.consume("q", 10)
	require.ElementsMatch(t, []uint64{2, 4}, sequencesOf(z.take(2)))
	z.confirm(&pb.ConsumeRequest{Ack: span(2, 2), Confirm: 1})
	require.Equal(t, []uint64{3}, sequencesOf(z.take(1)))
}

// Only one consumer of an exclusive queue receives messages. When it detaches, the consumer that attached next
// becomes active. The setting can be altered at any time.
func TestSingleActiveConsumer(t *testing.T) { simulated(t, testSingleActiveConsumer) }

func testSingleActiveConsumer(t *testing.T) {
	n := startAlone(t, nil)
	require.NoError(t, n.createWith("q", &pb.QueueConfig{Exclusive: true}))
	n.publish("q", "1", "2", "3")
	x, y := n.consume("q", 2), n.consume("q", 10)
	require.Equal(t, []uint64{1, 2}, sequencesOf(x.take(2)))
	require.NoError(t, x.stream.CloseSend())
	require.Equal(t, []uint64{1, 2, 3}, sequencesOf(y.take(3)))
	z := n.consume("q", 10)
	require.NoError(t, n.alter("q", &pb.QueueConfig{}, "exclusive"))
	n.publish("q", "4", "5")
	require.Len(t, append(y.take(1), z.take(1)...), 2)
	require.NoError(t, n.alter("q", &pb.QueueConfig{Exclusive: true}, "exclusive"))
	n.publish("q", "6", "7")
	require.Equal(t, []uint64{6, 7}, sequencesOf(y.take(2)))
}

// Invalid settings of messages and queues that affect the order are rejected with a reason, and nothing is
// stored.
func TestOrderRefusals(t *testing.T) { simulated(t, testOrderRefusals) }

func testOrderRefusals(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	for name, c := range map[string]struct {
		message *pb.Message
		want    error
		reports string
	}{
		"priority": {priority(10), apierror.ErrInvalid, "0 to 9"},
		"group":    {grouped(strings.Repeat("g", 2048)), txn.ErrTooLarge, "1024"},
	} {
		_, err := n.queues.Publish(t.Context(), &pb.PublishRequest{Queue: "q", Messages: []*pb.Message{c.message}})
		require.Equal(t, codes.InvalidArgument, status.Code(err), name)
		require.Contains(t, err.Error(), c.reports, name)
		require.ErrorIs(t, kind(err), c.want, name)
	}
	require.Empty(t, n.browse("q"))
	require.ErrorIs(t, kind(n.alter("q", &pb.QueueConfig{Priorities: true}, "priorities")), txn.ErrPrioritiesFixed)
	require.ErrorIs(t, kind(n.alter("q", &pb.QueueConfig{Priorities: true}, "*")), txn.ErrPrioritiesFixed)
}
