// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func (n *fakeNode) GetQueue(_ context.Context, r *pb.GetQueueRequest) (*pb.GetQueueResponse, error) {
	n.pair.mu.Lock()
	defer n.pair.mu.Unlock()
	n.pair.lookups++
	if err := n.active(); err != nil {
		return nil, err
	}
	if n.pair.described != nil {
		if err := n.pair.described(r.GetName()); err != nil {
			return nil, err
		}
	}
	return &pb.GetQueueResponse{Queue: &pb.Queue{Name: r.GetName()}}, n.pair.owns(r.GetName())
}

func (p *fakePair) lookupCount() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lookups
}

// outage is long enough for several lookups of a client of lookupClient.
const outage = 3 * time.Second

// lookupClient opens a client that looks up owners twice a second, on average.
func (f *fakeFleet) lookupClient() *client.Client {
	return f.client(client.Options{ProbeInterval: 100 * time.Millisecond})
}

// during returns a context that ends after an outage.
func during(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), outage)
	t.Cleanup(cancel)
	return ctx
}

// lose stops the nodes of a pair.
func (f *fakeFleet) lose(pair string) {
	for _, n := range f.pairs[pair].nodes {
		n.server.Stop()
	}
}

// restore starts the nodes of a lost pair again.
func (f *fakeFleet) restore(pair string) {
	p := f.pairs[pair]
	p.mu.Lock()
	p.onPublish, p.nodes[0].role = nil, pb.Role_ROLE_ACTIVE
	p.mu.Unlock()
	for _, n := range p.nodes {
		n.start(n.addr)
	}
}

// commitLast makes a pair end the stream after it has committed the given number of publish requests, without a
// response to the last one, and refuse all later requests.
func (p *fakePair) commitLast(requests int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onPublish = func(n *fakeNode, _ *pb.PublishRequest) bool {
		if len(p.requests) < requests {
			return true
		}
		n.role = pb.Role_ROLE_STANDBY
		p.announce()
		return false
	}
}

// newOwners are the pairs that own the queue of a lost pair: the home pair, or another one.
func newOwners(t *testing.T, test func(t *testing.T, owner string)) {
	t.Helper()
	for _, owner := range []string{"a", "c"} {
		simulated(t, owner, func(t *testing.T) { test(t, owner) })
	}
}

// The pair of a consumer is lost. The consumer attaches to the next owner of the queue, and discards its deliveries.
func TestLostPairOfConsumer(t *testing.T) { newOwners(t, testLostPairOfConsumer) }

func testLostPairOfConsumer(t *testing.T, owner string) {
	f := newFakeFleet(t)
	f.own("b", "q")
	c := f.lookupClient()
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	old := f.pairs["b"].hold(t, c, co, "x", "y")
	pause(outage)
	require.Zero(t, f.pairs["a"].lookupCount(), "the pair is active")
	f.lose("b")
	require.NoError(t, old[0].Ack())
	txn := c.Begin().Publish("q", message("result")).Take(old[1])
	pause(outage)
	require.InDelta(t, 6, f.pairs["a"].lookupCount(), 4)

	f.own(owner, "q")
	committed := make(chan error)
	go func() {
		_, err := txn.Commit(t.Context())
		committed <- err
	}()
	require.ErrorIs(t, <-committed, client.ErrInvalid, "the consumer has another pair")
	_, err = c.Publish(soon(t), "q", message("new"))
	require.NoError(t, err)
	d, err := co.Receive(soon(t))
	require.NoError(t, err)
	require.Equal(t, "new", string(d.Body))
	require.NoError(t, d.AckSync(soon(t)))
	require.ErrorIs(t, old[0].AckSync(soon(t)), client.ErrOutcomeLost)
	require.ErrorIs(t, co.Flush(soon(t)), client.ErrOutcomeLost)
	require.ErrorIs(t, old[1].Ack(), client.ErrInvalid)
	require.Equal(t, []uint64{1}, f.pairs[owner].ackedSequences("q"))
	require.Equal(t, []string{"new"}, f.pairs[owner].bodies("q"))
	require.NoError(t, co.Close())
}

// All nodes of a pair are down for some time. As long as the owner of a queue does not change, its consumers and
// producers continue as after a failover, even if the home pair names another owner.
func TestPairReturns(t *testing.T) {
	for _, outdated := range []bool{false, true} {
		simulated(t, fmt.Sprintf("outdated=%t", outdated), func(t *testing.T) { testPairReturns(t, outdated) })
	}
}

func testPairReturns(t *testing.T, outdated bool) {
	f := newFakeFleet(t)
	f.own("b", "q")
	f.own("b", "q")
	b := f.pairs["b"]
	c := f.lookupClient()
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	old := b.hold(t, c, co, "0")
	p, err := c.NewProducer(t.Context(), client.ProducerOptions{BatchMessages: 1})
	require.NoError(t, err)
	b.commitLast(3)
	for i := range 10 {
		p.PublishAsync(t.Context(), "q", message("%d", i+1))
	}
	synctest.Wait()
	f.lose("b")
	require.NoError(t, old[0].Ack())
	if outdated {
		f.see("a", "q", fakeOwner{"c", 1})
	}
	pause(outage)
	require.Positive(t, f.pairs["a"].lookupCount())
	f.restore("b")
	require.NoError(t, p.Flush(soon(t)))
	require.Equal(t, numbers(11), b.bodies("q"))
	require.NoError(t, co.Flush(soon(t)))
	require.Equal(t, []uint64{1}, b.ackedSequences("q"))
	for i := range 10 {
		d, err := co.Receive(soon(t))
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(i+1), string(d.Body))
	}
}

// A new pair has the addresses of a lost pair, and its queue has the same ID. Answers to deliveries of the lost pair
// are not sent to it.
func TestNewPairAtSameAddresses(t *testing.T) { synctest.Test(t, testNewPairAtSameAddresses) }

func testNewPairAtSameAddresses(t *testing.T) {
	f := newFakeFleet(t)
	f.own("b", "q")
	b := f.pairs["b"]
	c := f.lookupClient()
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	old := b.hold(t, c, co, "x", "y")
	f.lose("b")
	require.NoError(t, old[0].Ack())
	b.mu.Lock()
	clear(b.messages)
	for _, n := range b.nodes {
		n.pairID = "new"
	}
	b.mu.Unlock()
	f.restore("b")
	_, err = c.Publish(soon(t), "q", message("new"))
	require.NoError(t, err)
	d, err := co.Receive(soon(t))
	require.NoError(t, err)
	require.EqualValues(t, 1, d.Sequence)
	require.ErrorIs(t, old[1].Ack(), client.ErrInvalid)
	require.Empty(t, b.ackedSequences("q"))
	require.NoError(t, d.AckSync(soon(t)))
	require.Equal(t, []uint64{1}, b.ackedSequences("q"))
}

// The pair of a producer is lost. The outcome of publishes that were sent to it is unknown; later publishes are sent to
// the next owner of their queue. Publishes to other queues wait for the pair.
func TestLostPairOfProducer(t *testing.T) { newOwners(t, testLostPairOfProducer) }

func testLostPairOfProducer(t *testing.T, owner string) {
	f := newFakeFleet(t)
	f.own("b", "q", "other")
	b := f.pairs["b"]
	b.commitLast(3)
	c := f.lookupClient()
	p, err := c.NewProducer(t.Context(), client.ProducerOptions{BatchMessages: 1, Window: 8})
	require.NoError(t, err)
	var all []*client.Pending
	publish := func(n int) {
		for range n {
			all = append(all, p.PublishAsync(t.Context(), "q", message("%02d", len(all))))
			p.PublishAsync(t.Context(), "other", message("%02d", len(all)-1))
		}
	}
	publish(20)
	synctest.Wait()
	f.lose("b")
	publish(10)
	pause(outage)
	require.Positive(t, f.pairs["a"].lookupCount())
	for _, x := range all[2:] {
		require.NoError(t, x.Err())
	}
	f.own(owner, "q")
	publish(10)
	var stored []string
	unknown := 0
	for i, x := range all {
		_, err := x.Wait(soon(t))
		switch {
		case err == nil && i >= 2:
			stored = append(stored, fmt.Sprintf("%02d", i))
		case err != nil:
			require.ErrorIs(t, err, client.ErrOutcomeUnknown)
			require.ErrorIs(t, err, client.ErrUnavailable)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			unknown++
		}
	}
	require.Positive(t, unknown)
	require.LessOrEqual(t, unknown, 8, "at most the window")
	require.Equal(t, numbered(40-len(stored), 40), stored)
	require.Equal(t, stored, f.pairs[owner].bodies("q"))
	require.Empty(t, f.pairs[owner].bodies("other"))
	_, err = p.Publish(soon(t), "q", message("last"))
	require.NoError(t, err)

	f.restore("b")
	require.ErrorIs(t, p.Flush(soon(t)), client.ErrOutcomeUnknown)
	require.Equal(t, numbered(0, 40), b.bodies("other"))
}

// A producer that has sent nothing to a lost pair reports no unknown outcomes, and publishes of a call that ends before
// the owner is known are not stored.
func TestLostPairWithoutSentPublishes(t *testing.T) { newOwners(t, testLostPairWithoutSentPublishes) }

func testLostPairWithoutSentPublishes(t *testing.T, owner string) {
	f := newFakeFleet(t)
	f.own("b", "q")
	c := f.lookupClient()
	_, err := c.Publish(soon(t), "q", message("at b"))
	require.NoError(t, err)
	f.lose("b")
	synctest.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	pending := c.Begin().Publish("q", message("0"))
	first := make(chan error)
	go func() {
		_, err := c.Publish(t.Context(), "q", message("1"))
		first <- err
	}()
	synctest.Wait()
	_, err = c.Publish(ctx, "q", message("canceled"))
	require.ErrorIs(t, err, client.ErrUnavailable)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
	f.own(owner, "q")
	require.NoError(t, <-first)
	_, err = c.Publish(soon(t), "q", message("2"))
	require.NoError(t, err)
	_, err = pending.Commit(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"1", "2", "0"}, f.pairs[owner].bodies("q"))
}

// Calls without an unanswered attempt are sent to the next owner. A call with an unknown outcome waits for its pair.
func TestLostPairOfCalls(t *testing.T) { newOwners(t, testLostPairOfCalls) }

func testLostPairOfCalls(t *testing.T, owner string) {
	f := newFakeFleet(t)
	f.own("b", "q")
	b := f.pairs["b"]
	c := f.lookupClient()
	adm := admin.New(c)
	_, err := adm.AlterQueue(soon(t), "q", admin.QueueConfig{})
	require.NoError(t, err)
	require.NoError(t, c.Begin().Publish("q", message("prepared")).Prepare(soon(t), "x"))
	unknown := unknownOutcome(t, b, c)
	f.lose("b")
	synctest.Wait()
	done := make(chan error)
	calls := map[string]func(context.Context) error{
		"alter": func(ctx context.Context) error {
			_, err := adm.AlterQueue(ctx, "q", admin.QueueConfig{})
			return err
		},
		"read": func(ctx context.Context) error { _, err := adm.GetQueue(ctx, "q"); return err },
		"commit": func(ctx context.Context) error {
			_, err := c.Begin().Publish("q", message("x")).Commit(ctx)
			return err
		},
	}
	for name, call := range calls {
		go func() {
			if err := call(t.Context()); err != nil {
				done <- fmt.Errorf("%s: %w", name, err)
				return
			}
			done <- nil
		}()
	}
	pause(outage)
	f.own(owner, "q")
	for range calls {
		require.NoError(t, <-done)
	}
	require.Equal(t, []string{"x"}, f.pairs[owner].bodies("q"))
	_, err = unknown.Commit(during(t))
	require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.Equal(t, []string{"x"}, f.pairs[owner].bodies("q"))
	_, err = adm.CommitPrepared(during(t), "x")
	require.ErrorIs(t, err, context.DeadlineExceeded, "only the lost pair can decide")
}

// The nodes of a pair that was removed from the fleet run again, and refuse clients.
func TestRemovedPair(t *testing.T) { newOwners(t, testRemovedPair) }

func testRemovedPair(t *testing.T, owner string) {
	f := newFakeFleet(t)
	f.own("b", "q")
	b := f.pairs["b"]
	c := f.lookupClient()
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	old := b.hold(t, c, co, "x")
	f.lose("b")
	b.mu.Lock()
	b.removed = true
	b.mu.Unlock()
	f.restore("b")
	pause(outage)
	f.own(owner, "q")
	_, err = c.Publish(soon(t), "q", message("new"))
	require.NoError(t, err)
	d, err := co.Receive(soon(t))
	require.NoError(t, err)
	require.Equal(t, "new", string(d.Body))
	require.ErrorIs(t, old[0].Ack(), client.ErrInvalid)
	require.Equal(t, []string{"x"}, b.bodies("q"))
}

// The queue of a lost pair is created again as a partitioned queue. Consumers end with this reason.
func TestLostPairOfPartitionedQueue(t *testing.T) { synctest.Test(t, testLostPairOfPartitionedQueue) }

func testLostPairOfPartitionedQueue(t *testing.T) {
	f := newFakeFleet(t)
	f.own("b", "q")
	a, b := f.pairs["a"], f.pairs["b"]
	c := f.lookupClient()
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	p, err := c.NewProducer(t.Context(), client.ProducerOptions{BatchMessages: 1})
	require.NoError(t, err)
	b.commitLast(1)
	p.PublishAsync(t.Context(), "q", message("unknown"))
	synctest.Wait()
	f.lose("b")
	for i := range 4 {
		p.PublishAsync(t.Context(), "q", message("%d", i))
	}
	partitioned := partitionedError(t)
	a.mu.Lock()
	a.described = func(queue string) error {
		if queue != "q" {
			return nil
		}
		return partitioned
	}
	a.mu.Unlock()
	err = p.Flush(soon(t))
	require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	require.Len(t, append(a.bodies("q#0/2"), a.bodies("q#1/2")...), 4)
	_, err = co.Receive(soon(t))
	var e *client.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "QUEUE_PARTITIONED", e.Reason)
}

// partitionedError reports that the queue q has two partitions.
func partitionedError(t *testing.T) error {
	st, err := status.New(codes.FailedPrecondition, "partitioned").WithDetails(
		&errdetails.ErrorInfo{Reason: "QUEUE_PARTITIONED", Domain: "lockstep.v1"},
		&pb.QueuePartitioned{Queue: "q", Count: 2})
	require.NoError(t, err)
	return st.Err()
}

// The partitions of a queue are deleted after a node has reported their number.
func TestDeletedPartitions(t *testing.T) { synctest.Test(t, testDeletedPartitions) }

func testDeletedPartitions(t *testing.T) {
	f := newFakeFleet(t)
	a := f.pairs["a"]
	queues := admin.New(f.lookupClient())
	partitioned, missing := partitionedError(t), refusal(t, codes.NotFound, "QUEUE_NOT_FOUND")
	deleted := map[string]bool{"q#0/2": true}
	a.mu.Lock()
	a.described = func(queue string) error {
		switch {
		case queue == "q":
			return partitioned
		case deleted[queue]:
			return missing
		}
		return nil
	}
	a.mu.Unlock()
	q, err := queues.GetQueue(soon(t), "q")
	require.NoError(t, err)
	require.Len(t, q.Partitions, 1)
	a.mu.Lock()
	deleted["q#1/2"] = true
	a.mu.Unlock()
	q, err = queues.GetQueue(soon(t), "q")
	require.ErrorIs(t, err, client.ErrQueueNotFound)
	require.Empty(t, q)
}
