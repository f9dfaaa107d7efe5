// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
)

// workload is a set of publishers and consumers that use the active node.
type workload struct {
	t       *testing.T
	nodes   [2]atomic.Pointer[testNode]
	working sync.WaitGroup
	stop    context.CancelFunc

	mu           sync.Mutex // guards the fields below
	acknowledged []string
	publishers   map[string]bool // publishers that have received a response
	consumed     map[string]bool
}

// startWorkload starts publishers and consumers of queue q.
func startWorkload(t *testing.T, publishers, consumers int, nodes ...*testNode) *workload {
	t.Helper()
	c := &workload{t: t, publishers: map[string]bool{}, consumed: map[string]bool{}}
	for i, n := range nodes {
		c.nodes[i].Store(n)
	}
	var ctx context.Context
	ctx, c.stop = context.WithCancel(t.Context())
	for i := range publishers {
		id := fmt.Sprint("p", i)
		c.working.Go(func() {
			for n := uint64(1); ctx.Err() == nil; n++ {
				c.publish(id, n) // retry until it succeeds, because an abandoned publish may still be stored
			}
		})
	}
	for i := range consumers {
		c.working.Go(func() {
			for try := i; ctx.Err() == nil; try++ {
				c.consume(ctx, c.nodes[try%2].Load())
			}
		})
	}
	return c
}

// recordPublished records an acknowledged publish.
func (c *workload) recordPublished(id, body string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acknowledged = append(c.acknowledged, body)
	c.publishers[id] = true
}

// publish tries both nodes alternately, with the same producer sequence, until one accepts the message.
func (c *workload) publish(id string, sequence uint64) {
	body := fmt.Sprint(id, "/", sequence)
	for try := 0; c.t.Context().Err() == nil; try++ {
		_, err := c.nodes[try%2].Load().queues.Publish(c.t.Context(), &pb.PublishRequest{
			Queue: "q", Messages: batch(body), Producer: &pb.Producer{Id: id, Sequence: sequence},
		})
		if err == nil {
			c.recordPublished(id, body)
			return
		}
		switch status.Code(err) {
		case codes.Unavailable, codes.Canceled: // the node is stopping or has stopped
		default:
			if !errors.Is(kind(err), replication.ErrNotActive) && c.t.Context().Err() == nil {
				c.t.Errorf("publish %s: %v", body, err)
				return
			}
		}
	}
}

// consume acknowledges the deliveries of the subscription work until the stream ends.
func (c *workload) consume(ctx context.Context, n *testNode) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := n.queues.Consume(ctx)
	if err != nil || stream.Send(&pb.ConsumeRequest{
		Attach: &pb.Attach{Queue: "q", Subscription: "work"},
		Credit: 10,
	}) != nil {
		return
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return
		}
		req := &pb.ConsumeRequest{}
		c.mu.Lock()
		for _, m := range resp.GetMessages() {
			c.consumed[string(m.GetMessage().GetBody())] = true
			req.Ack = append(req.Ack, &pb.SequenceRange{First: m.GetSequence(), Last: m.GetSequence()})
			req.Credit++
		}
		c.mu.Unlock()
		if len(req.GetAck()) > 0 && stream.Send(req) != nil {
			return
		}
	}
}

// waitAcks waits for the given number of additional acknowledged publishes.
func (c *workload) waitAcks(more int) {
	c.t.Helper()
	count := func() int {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.acknowledged)
	}
	before := count()
	require.Eventually(c.t, func() bool { return count() > before+more }, testTimeout, time.Millisecond)
}

// inSync waits until one node is active and the other is its standby. It returns their indexes.
func (c *workload) inSync() (active, standby int) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		a, b := c.nodes[0].Load().role(), c.nodes[1].Load().role()
		active, standby = 0, 1
		if b == pb.Role_ROLE_ACTIVE {
			a, b, active, standby = b, a, 1, 0
		}
		return a == pb.Role_ROLE_ACTIVE && b == pb.Role_ROLE_STANDBY
	}, testTimeout, 2*time.Millisecond, "in sync again")
	return active, standby
}

func (c *workload) restart(location int) {
	c.t.Helper()
	n := c.nodes[location].Load()
	n.stop()
	c.nodes[location].Store(start(c.t, n.config))
}

// Publishers and consumers continue during switchovers and restarts of both nodes. No acknowledged message is
// lost or duplicated. Both stores have the same content at the end.
func TestPublishersAndConsumersAcrossRoles(t *testing.T) {
	simulated(t, testPublishersAndConsumersAcrossRoles)
}

func testPublishersAndConsumersAcrossRoles(t *testing.T) {
	a, b := startPair(t, startEtcd(t))
	_, err := a.queues.CreateQueue(t.Context(),
		&pb.CreateQueueRequest{Name: "q", Subscriptions: []string{"default", "work"}})
	require.NoError(t, err)
	const publishers = 6
	c := startWorkload(t, publishers, 2, a, b)
	for round := range 3 {
		c.waitAcks(50)
		active, standby := c.inSync()
		if round > 0 {
			c.restart([]int{standby, active}[round-1])
			c.waitAcks(50)
			c.inSync()
		}
		require.Eventually(t, func() bool { // refused until the standby is in sync and announced
			_, err := c.nodes[0].Load().admin.Switchover(t.Context(), &pb.SwitchoverRequest{})
			return err == nil
		}, testTimeout, 2*time.Millisecond)
	}
	c.waitAcks(50)
	c.inSync()
	c.stop()
	c.working.Wait()
	require.Len(t, c.publishers, publishers, "all publishers received a response")
	require.NotEmpty(t, c.consumed)
	c.check()
}

// check compares the acknowledged messages with the stored messages.
func (c *workload) check() {
	t := c.t
	t.Helper()
	location, other := c.inSync()
	active, standby := c.nodes[location].Load(), c.nodes[other].Load()
	q, err := active.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "q"})
	require.NoError(t, err)
	got := bodies(active.consume("q", 100_000).take(int(q.GetQueue().GetMessages())))
	seen := map[string]bool{}
	for _, body := range got {
		require.False(t, seen[body], "%s is duplicated", body)
		seen[body] = true
	}
	for _, body := range c.acknowledged {
		require.True(t, seen[body], "%s was acknowledged and is lost", body)
	}
	for body := range c.consumed {
		require.True(t, seen[body], "%s was delivered and does not exist", body)
	}
	require.Eventually(t, func() bool {
		x, err := active.admin.GetDigest(t.Context(), &pb.GetDigestRequest{})
		require.NoError(t, err)
		y, err := standby.admin.GetDigest(t.Context(), &pb.GetDigestRequest{})
		require.NoError(t, err)
		return x.GetLsn() == y.GetLsn() && x.GetContent() == y.GetContent()
	}, testTimeout, 10*time.Millisecond, "both stores end with the same contents")
}

// publishing opens a publish stream that ends with the test.
func publishing(t *testing.T, n *testNode) pb.QueueService_PublishStreamClient {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	s, err := n.queues.PublishStream(ctx)
	require.NoError(t, err)
	return s
}

func publishAs(correlation uint64) *pb.PublishStreamRequest {
	return &pb.PublishStreamRequest{
		Correlation: correlation, Publish: &pb.PublishRequest{Queue: "q", Messages: batch("x")},
	}
}

// requireSubmitted reads the status that ends a publish stream. It requires that through is the last submitted
// request.
func requireSubmitted(t *testing.T, s pb.QueueService_PublishStreamClient, through uint64) {
	t.Helper()
	_, err := s.Recv()
	require.ErrorIs(t, kind(err), replication.ErrBlocked)
	for _, d := range status.Convert(err).Details() {
		if d, ok := d.(*pb.Submitted); ok {
			require.Equal(t, through, d.GetThrough())
			return
		}
	}
	require.FailNow(t, "the node does not report its progress", "%v", err)
}
