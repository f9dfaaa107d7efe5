// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store/txn"
)

func acksOp(queue string, first, last uint64) *pb.Operation {
	return &pb.Operation{Kind: &pb.Operation_Ack{Ack: &pb.AckOperation{
		Queue: queue, Ranges: span(first, last), Required: true,
	}}}
}

func (n *testNode) prepare(xid string, ops ...*pb.Operation) error {
	n.t.Helper()
	_, err := n.queues.Prepare(n.t.Context(), &pb.PrepareRequest{Xid: xid, Operations: ops})
	return err
}

func (n *testNode) commitPrepared(xid string) error {
	n.t.Helper()
	_, err := n.queues.CommitPrepared(n.t.Context(), &pb.CommitPreparedRequest{Xid: xid})
	return err
}

func (n *testNode) rollbackPrepared(xid string) error {
	n.t.Helper()
	_, err := n.queues.RollbackPrepared(n.t.Context(), &pb.RollbackPreparedRequest{Xid: xid})
	return err
}

func (n *testNode) listPrepared() *pb.ListPreparedResponse {
	n.t.Helper()
	resp, err := n.queues.ListPrepared(n.t.Context(), &pb.ListPreparedRequest{})
	require.NoError(n.t, err)
	return resp
}

// Until the decision, prepared messages are not visible, and messages with prepared acknowledgements are not
// delivered.
func TestPrepared(t *testing.T) { simulated(t, testPrepared) }

func testPrepared(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("in")
	n.createQueue("out")
	n.publish("in", "1", "2", "3")
	c := n.consume("in", 10)
	c.take(3)
	before := time.Now()
	require.NoError(t, n.prepare("a", acksOp("in", 1, 1), publishOp("out", "x", "y")))
	require.NoError(t, n.prepare("b", ackOp("in", 2, 2), publishOp("out", "z")))
	require.Empty(t, n.browse("out"))
	list := n.listPrepared()
	require.Len(t, list.GetTransactions(), 2)
	require.Equal(t, uint32(2), list.GetTotal())
	a := list.GetTransactions()[0]
	require.Equal(t, "a", a.GetXid())
	require.Equal(t, []string{"in", "out"}, []string{a.GetQueues()[0].GetQueue(), a.GetQueues()[1].GetQueue()})
	require.Equal(t, []uint64{1, 2}, []uint64{a.GetQueues()[0].GetAcks(), a.GetQueues()[1].GetPublishes()})
	require.WithinDuration(t, before, a.GetPreparedAt().AsTime(), time.Minute)
	require.NotZero(t, a.GetBytes())

	// Messages with prepared acknowledgements no longer belong to the consumer, so they are not requeued when it
	// detaches.
	require.NoError(t, c.stream.CloseSend())
	_, err := c.stream.Recv()
	require.Error(t, err)
	c = n.consume("in", 10)
	require.Equal(t, []string{"3"}, bodies(c.take(1)))

	require.NoError(t, n.commitPrepared("a"))
	require.NoError(t, n.commitPrepared("a"))
	require.Equal(t, []string{"x", "y"}, bodies(n.browse("out")))
	require.NoError(t, n.rollbackPrepared("b"))
	require.NoError(t, n.rollbackPrepared("b"))
	require.Equal(t, []string{"2"}, bodies(c.take(1)), "only uncommitted messages are redelivered")
	require.ErrorIs(t, kind(n.rollbackPrepared("a")), txn.ErrCommitted)
	require.ErrorIs(t, kind(n.commitPrepared("b")), txn.ErrCommitted, "a rolled-back transaction has the same reason")
	require.Empty(t, n.listPrepared().GetTransactions())
}

// Invalid requests are rejected with a reason and a description, and nothing is stored.
func TestPreparedLimits(t *testing.T) { simulated(t, testPreparedLimits) }

func testPreparedLimits(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	require.NoError(t, n.createWith("small", &pb.QueueConfig{MaxMessages: 2}))
	n.publish("q", "1", "2", "3")
	require.NoError(t, n.prepare("used", acksOp("q", 1, 1), publishOp("small", "1")))
	for name, c := range map[string]struct {
		xid     string
		ops     []*pb.Operation
		code    codes.Code
		reports string
	}{
		"no xid": {"", []*pb.Operation{publishOp("q", "x")}, codes.InvalidArgument, "is empty"},
		"long xid": {
			strings.Repeat("x", 129),
			[]*pb.Operation{publishOp("q", "x")},
			codes.InvalidArgument, "129 bytes",
		},
		"unprintable xid": {"a\tb", []*pb.Operation{publishOp("q", "x")}, codes.InvalidArgument, "unprintable"},
		"xid in use":      {"used", []*pb.Operation{publishOp("q", "x")}, codes.AlreadyExists, "new xid"},
		"no operations":   {"x", nil, codes.InvalidArgument, "0 operations"},
		"release": {"x", []*pb.Operation{{Kind: &pb.Operation_Release{Release: &pb.ReleaseOperation{
			Queue: "q", Ranges: span(2, 2),
		}}}}, codes.InvalidArgument, "cannot release"},
		"unknown queue":  {"x", []*pb.Operation{publishOp("r", "x")}, codes.NotFound, `"r"`},
		"full":           {"x", []*pb.Operation{publishOp("small", "2", "3")}, codes.ResourceExhausted, "full"},
		"reserved":       {"x", []*pb.Operation{ackOp("q", 1, 1)}, codes.Aborted, "reserved"},
		"beyond the end": {"x", []*pb.Operation{ackOp("q", 4, 4)}, codes.InvalidArgument, "not published"},
		"too large": {
			"x",
			[]*pb.Operation{publishOp("q", strings.Repeat("x", txn.MaxPreparedBytes))},
			codes.InvalidArgument, "to prepare",
		},
	} {
		section(t, name, func(t *testing.T) {
			err := n.prepare(c.xid, c.ops...)
			require.Equal(t, c.code, status.Code(err), "%v", err)
			require.Contains(t, err.Error(), c.reports)
			require.Len(t, n.listPrepared().GetTransactions(), 1)
		})
	}
	for name, call := range map[string]func() error{
		"delete": func() error {
			_, err := n.queues.DeleteQueue(t.Context(), &pb.DeleteQueueRequest{Name: "small"})
			return err
		},
		"purge": func() error {
			_, err := n.queues.PurgeQueue(t.Context(), &pb.PurgeQueueRequest{Name: "q"})
			return err
		},
		"unsubscribe": func() error {
			_, err := n.queues.DeleteSubscription(t.Context(), &pb.DeleteSubscriptionRequest{Queue: "q", Name: "default"})
			return err
		},
	} {
		err := call()
		require.Equal(t, codes.FailedPrecondition, status.Code(err), name)
	}
	require.Equal(t, codes.NotFound, status.Code(n.commitPrepared("never")))
	_, err := n.queues.Commit(t.Context(), &pb.CommitRequest{Operations: []*pb.Operation{acksOp("q", 1, 2)}})
	require.ErrorIs(t, kind(err), txn.ErrReserved)
	_, err = n.queues.Commit(t.Context(), &pb.CommitRequest{Operations: []*pb.Operation{acksOp("q", 2, 3)}})
	require.NoError(t, err)
	_, err = n.queues.Commit(t.Context(), &pb.CommitRequest{Operations: []*pb.Operation{acksOp("q", 3, 3)}})
	require.ErrorIs(t, kind(err), txn.ErrAlreadyAcknowledged)
	require.NoError(t, n.commitPrepared("used"))
}

// A coordinator is notified of a heuristic decision by an operator, even if that decision equals the coordinator's
// decision.
func TestPreparedHeuristics(t *testing.T) { simulated(t, testPreparedHeuristics) }

func testPreparedHeuristics(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	for _, xid := range []string{"a", "b"} {
		require.NoError(t, n.prepare(xid, publishOp("q", xid)))
	}
	committed, err := n.queues.CommitPrepared(t.Context(), &pb.CommitPreparedRequest{Xid: "a", Heuristic: true})
	require.NoError(t, err)
	require.True(t, committed.GetHeuristic())
	_, err = n.queues.RollbackPrepared(t.Context(), &pb.RollbackPreparedRequest{Xid: "b", Heuristic: true})
	require.NoError(t, err)
	committed, err = n.queues.CommitPrepared(t.Context(), &pb.CommitPreparedRequest{Xid: "a"})
	require.NoError(t, err)
	require.True(t, committed.GetHeuristic())
	require.ErrorIs(t, kind(n.rollbackPrepared("a")), txn.ErrHeuristicCommit)
	require.ErrorIs(t, kind(n.commitPrepared("b")), txn.ErrHeuristicRollback)
	require.Equal(t, []string{"a"}, bodies(n.browse("q")))
}

// A retried Prepare returns the original result. A different Prepare with the same sequence is rejected.
func TestPreparedRetry(t *testing.T) { simulated(t, testPreparedRetry) }

func testPreparedRetry(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	req := &pb.PrepareRequest{
		Xid: "a", Operations: []*pb.Operation{publishOp("q", "1")}, Producer: &pb.Producer{Id: "p", Epoch: 1, Sequence: 1},
	}
	first, err := n.queues.Prepare(t.Context(), req)
	require.NoError(t, err)
	req.Producer.Retry = true
	second, err := n.queues.Prepare(t.Context(), req)
	require.NoError(t, err)
	require.True(t, second.GetDuplicate())
	require.Equal(t, first.GetLsn(), second.GetLsn())
	req.Operations = []*pb.Operation{publishOp("q", "2")}
	_, err = n.queues.Prepare(t.Context(), req)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.NoError(t, n.commitPrepared("a"))
	second, err = n.queues.Prepare(t.Context(), &pb.PrepareRequest{
		Xid: "a", Operations: []*pb.Operation{publishOp("q", "1")},
		Producer: &pb.Producer{Id: "p", Epoch: 1, Sequence: 1, Retry: true},
	})
	require.NoError(t, err, "a retry after the decision")
	require.Equal(t, first.GetLsn(), second.GetLsn())
}

// A prepared transaction survives a failover between the phases, and a restart of both nodes.
func TestPreparedSurvivesFailover(t *testing.T) { simulated(t, testPreparedSurvivesFailover) }

func testPreparedSurvivesFailover(t *testing.T) {
	etcd := startEtcd(t)
	active, standby := startPair(t, etcd)
	active.createQueue("in")
	active.createQueue("out")
	active.publish("in", "1", "2", "3")
	large := string(bytes.Repeat([]byte("x"), 3<<20))
	require.NoError(t, active.prepare("a", acksOp("in", 1, 1), publishOp("out", large)))
	require.NoError(t, active.prepare("b", acksOp("in", 2, 2), publishOp("out", "b")))
	require.NoError(t, active.prepare("c", acksOp("in", 3, 3), publishOp("out", "c")))
	require.NoError(t, active.commitPrepared("c"))
	active.stop()
	standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	require.NoError(t, standby.commitPrepared("c"), "a retry on the other node")
	require.Len(t, standby.listPrepared().GetTransactions(), 2)
	c := standby.consume("in", 10)
	require.NoError(t, standby.rollbackPrepared("b"))
	require.Equal(t, []string{"2"}, bodies(c.take(1)))
	active = start(t, active.config)
	active.waitFor(pb.Role_ROLE_STANDBY)

	active.stop()
	standby.stop()
	active, standby = start(t, active.config), start(t, standby.config)
	leader := active
	require.Eventually(t, func() bool {
		if leader = active; active.role() != pb.Role_ROLE_ACTIVE {
			leader = standby
		}
		return leader.role() == pb.Role_ROLE_ACTIVE
	}, testTimeout, 5*time.Millisecond)
	require.Len(t, leader.listPrepared().GetTransactions(), 1)
	require.NoError(t, leader.commitPrepared("a"))
	require.Equal(t, []string{"c", large}, bodies(leader.browse("out")))
	require.ErrorIs(t, kind(leader.commitPrepared("b")), txn.ErrCommitted, "rolled back by the timeout")
}

// A transaction that is not decided within the timeout is rolled back. Its coordinator is notified.
func TestPreparedTimeout(t *testing.T) { simulated(t, testPreparedTimeout) }

func testPreparedTimeout(t *testing.T) {
	n := startAlone(t, func(c *config.Config) { c.Txn.PreparedTimeout = config.Duration(time.Second) })
	n.createQueue("q")
	n.publish("q", "1")
	c := n.consume("q", 10)
	c.take(1)
	require.NoError(t, n.prepare("a", ackOp("q", 1, 1), publishOp("q", "2")))
	require.Equal(t, []string{"1"}, bodies(c.take(1)), "delivered again")
	err := n.commitPrepared("a")
	require.ErrorIs(t, kind(err), txn.ErrHeuristicRollback)
	resp, err := n.queues.RollbackPrepared(t.Context(), &pb.RollbackPreparedRequest{Xid: "a"})
	require.NoError(t, err)
	require.True(t, resp.GetHeuristic())
}

// acknowledge receives n messages. It acknowledges each message before it waits for the next message.
func (c *consumer) acknowledge(n int) (got []string) {
	c.t.Helper()
	for len(got) < n {
		resp, err := c.stream.Recv()
		require.NoError(c.t, err)
		for _, m := range resp.GetMessages() {
			got = append(got, string(m.GetMessage().GetBody()))
			require.NoError(c.t, c.stream.Send(&pb.ConsumeRequest{Ack: span(m.GetSequence(), m.GetSequence())}))
		}
	}
	require.Len(c.t, got, n)
	return got
}

// After a rollback, messages with prepared acknowledgements are redelivered once, even in queues with priorities
// or groups.
func TestPreparedRollbackInOrderedQueues(t *testing.T) {
	simulated(t, testPreparedRollbackInOrderedQueues)
}

func testPreparedRollbackInOrderedQueues(t *testing.T) {
	n := startAlone(t, nil)
	require.NoError(t, n.createWith("priorities", &pb.QueueConfig{Priorities: true}))
	n.createQueue("groups")
	for queue, message := range map[string]func(i int) *pb.Message{
		"priorities": func(i int) *pb.Message { return &pb.Message{Body: []byte{byte('0' + i)}, Priority: new(uint32(i))} },
		"groups":     func(i int) *pb.Message { return &pb.Message{Body: []byte{byte('0' + i)}, Group: "g"} },
	} {
		section(t, queue, func(t *testing.T) {
			var messages []*pb.Message
			for i := range 5 {
				messages = append(messages, message(i))
			}
			_, err := n.queues.Publish(t.Context(), &pb.PublishRequest{Queue: queue, Messages: messages})
			require.NoError(t, err)
			require.NoError(t, n.prepare(queue, ackOp(queue, 2, 3)))
			c := n.consume(queue, 10)
			got := c.acknowledge(3)
			require.ElementsMatch(t, []string{"0", "3", "4"}, got)
			require.NoError(t, n.rollbackPrepared(queue))
			got = append(got, c.acknowledge(2)...)
			require.ElementsMatch(t, []string{"0", "1", "2", "3", "4"}, got)
			require.Eventually(t, func() bool {
				q, err := n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: queue})
				return err == nil && q.GetQueue().GetMessages() == 0
			}, testTimeout, 5*time.Millisecond)
		})
	}
}
