// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func message(format string, args ...any) client.Message {
	return client.Message{Body: fmt.Appendf(nil, format, args...)}
}

func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestOpenRejectsInvalidAddresses(t *testing.T) {
	var many []string
	for port := range 17 {
		many = append(many, fmt.Sprintf("a:%d", port+1))
	}
	for _, addrs := range [][]string{nil, {"nohost"}, {":1"}, {"a:1", "a:1"}, {"a:1", "b:"}, many} {
		_, err := client.OpenWith(t.Context(), client.Options{Addresses: addrs})
		require.ErrorIs(t, err, client.ErrInvalid, addrs)
	}
}

// WaitActive returns the address and the term of the active node.
func TestWaitActive(t *testing.T) { synctest.Test(t, testWaitActive) }

func testWaitActive(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	a, err := c.WaitActive(soon(t))
	require.NoError(t, err)
	require.Equal(t, client.Active{Address: p.addrs[0], Term: 1}, a)
}

// If a refusal contains the address of the active node as a hint, the client uses this address even if it was not
// configured.
func TestFollowsHintToUnknownAddress(t *testing.T) {
	synctest.Test(t, testFollowsHintToUnknownAddress)
}

func testFollowsHintToUnknownAddress(t *testing.T) {
	p := newFakePair(t)
	p.nodes[0].pair.takeOver(1)
	// The only given address is a node that still claims to be active; its refusal contains the hint.
	c := p.client(client.Options{Addresses: p.addrs[:1]})
	p.mu.Lock()
	p.refuse = func(*pb.PublishRequest) *pb.RequestError { return nil }
	p.mu.Unlock()
	p.setRole(0, pb.Role_ROLE_BLOCKED) // still a target, because no other node is known
	r, err := c.Publish(soon(t), "q", message("x"))
	require.NoError(t, err)
	require.Equal(t, p.addrs[1], r.Address)
}

// receive reads from a channel and fails the test on a timeout.
func receive[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-soon(t).Done():
		require.FailNow(t, "no value received")
		panic("unreachable")
	}
}

// startPublish publishes a message in a goroutine; the returned function waits for the receipt.
func startPublish(t *testing.T, c *client.Client, body string) func() client.Receipt {
	t.Helper()
	type answer struct {
		receipt client.Receipt
		err     error
	}
	answers := make(chan answer, 1)
	go func() {
		r, err := c.Publish(soon(t), "q", message("%s", body))
		answers <- answer{r, err}
	}()
	return func() client.Receipt {
		t.Helper()
		a := receive(t, answers)
		require.NoError(t, a.err)
		return a.receipt
	}
}

// If the active commits and is killed before it responds, the publish completes once, as soon as the other node is
// active.
func TestActiveKilledBeforeResponse(t *testing.T) { synctest.Test(t, testActiveKilledBeforeResponse) }

func testActiveKilledBeforeResponse(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	_, err := c.Publish(soon(t), "q", message("a"))
	require.NoError(t, err)
	killed := make(chan struct{})
	p.mu.Lock()
	p.onPublish = func(*fakeNode, *pb.PublishRequest) bool {
		p.onPublish = nil
		go func() { p.nodes[0].server.Stop(); close(killed) }()
		return false
	}
	p.mu.Unlock()
	answer := startPublish(t, c, "b")
	receive(t, killed)
	start := time.Now()
	p.takeOver(1)
	r := answer()
	require.Zero(t, time.Since(start))
	require.True(t, r.Duplicate)
	require.Equal(t, p.addrs[1], r.Address)
	require.Equal(t, uint64(2), r.Sequence)
	require.Equal(t, []string{"a", "b"}, p.bodies("q"))
}

// If the active stops responding without closing connections, the client continues on the node that takes over.
func TestFailoverFromUnresponsiveNode(t *testing.T) {
	synctest.Test(t, testFailoverFromUnresponsiveNode)
}

func testFailoverFromUnresponsiveNode(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{ProbeInterval: 200 * time.Millisecond})
	_, err := c.Publish(soon(t), "q", message("a"))
	require.NoError(t, err)
	p.nodes[0].gate.freeze()
	answer := startPublish(t, c, "b")
	p.takeOver(1)
	require.Equal(t, p.addrs[1], answer().Address)
	// After it resumes, the node still claims to be active in its old term: it receives no requests.
	p.nodes[0].gate.open()
	for range 20 {
		r, err := c.Publish(soon(t), "q", message("c"))
		require.NoError(t, err)
		require.Equal(t, p.addrs[1], r.Address)
	}
}

// A connection on which the node no longer responds is replaced, without a failover.
func TestUnresponsiveConnectionIsReplaced(t *testing.T) {
	synctest.Test(t, testUnresponsiveConnectionIsReplaced)
}

func testUnresponsiveConnectionIsReplaced(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{ProbeInterval: 100 * time.Millisecond})
	_, err := c.Publish(soon(t), "q", message("a"))
	require.NoError(t, err)
	old := p.nodes[0].gate
	old.freeze()
	p.nodes[0].gate = newGate()
	answer := startPublish(t, c, "b")
	timer := time.AfterFunc(250*time.Millisecond, old.open) // new connections use the same gate
	defer timer.Stop()
	answer()
	require.Equal(t, []string{"a", "b"}, p.bodies("q"))
}

// Asynchronous publishes are stored exactly once and in order, across failovers.
func TestPipelineKeepsOrder(t *testing.T) { synctest.Test(t, testPipelineKeepsOrder) }

func testPipelineKeepsOrder(t *testing.T) {
	const total = 20_000
	p := newFakePair(t)
	c := p.client(client.Options{})
	producer, err := c.NewProducer(t.Context(), client.ProducerOptions{Window: 50, BatchMessages: 20})
	require.NoError(t, err)
	p.handOver(100)
	var want []string
	var pending []*client.Pending
	for i := range total {
		want = append(want, fmt.Sprint(i))
		pending = append(pending, producer.PublishAsync(soon(t), "q", message("%d", i)))
	}
	<-pending[total-1].Done()
	for _, e := range pending[:total-1] {
		select {
		case <-e.Done():
		default:
			require.Fail(t, "out of order")
		}
	}
	require.NoError(t, producer.Flush(soon(t)))
	require.NoError(t, producer.Close())
	require.Equal(t, want, p.bodies("q"))
	for i, e := range pending {
		r, err := e.Wait(soon(t))
		require.NoError(t, err)
		require.Equal(t, uint64(i+1), r.Sequence)
	}
	require.Greater(t, p.term, uint64(3), "too few switchovers")
	require.Less(t, len(p.requests), total/4, "publishes were not batched")
}

// Requests to different queues share a frame if the node supports this. Each request has its own outcome, and
// failovers do not change the order.
func TestFramesWithSeveralQueues(t *testing.T) {
	for _, simple := range []bool{false, true} {
		simulated(t, fmt.Sprint("simple ", simple), func(t *testing.T) {
			const total, queues = 20_000, 97
			p := newFakePair(t)
			p.simple = simple
			c := p.client(client.Options{})
			producer, err := c.NewProducer(t.Context(), client.ProducerOptions{})
			require.NoError(t, err)
			p.handOver(1000)
			p.refuse = func(r *pb.PublishRequest) *pb.RequestError {
				if r.GetQueue() == "q13" {
					return &pb.RequestError{Code: uint32(codes.NotFound), Message: "injected"}
				}
				return nil
			}
			want, refused := make(map[string][]string), 0
			var pending []*client.Pending
			for i := range total {
				queue := fmt.Sprint("q", i%queues)
				if i%queues != 13 {
					want[queue] = append(want[queue], fmt.Sprint(i))
				}
				pending = append(pending, producer.PublishAsync(soon(t), queue, message("%d", i)))
			}
			require.ErrorIs(t, producer.Flush(soon(t)), client.ErrQueueNotFound)
			require.NoError(t, producer.Flush(soon(t)), "each error is reported once")
			require.NoError(t, producer.Close())
			for _, e := range pending {
				if e.Err() != nil {
					refused++
				}
			}
			for queue, bodies := range want {
				require.Equal(t, bodies, p.bodies(queue), queue)
			}
			require.Empty(t, p.bodies("q13"))
			require.Equal(t, (total+queues-14)/queues, refused)
			require.Greater(t, p.term, uint64(3), "too few switchovers")
			if simple {
				require.GreaterOrEqual(t, p.frames, total)
			} else {
				require.Less(t, p.frames, total/8)
			}
		})
	}
}

// Concurrent publishes are all stored, and each receipt has the sequence of its message.
func TestConcurrentPublish(t *testing.T) { synctest.Test(t, testConcurrentPublish) }

func testConcurrentPublish(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	var wg sync.WaitGroup
	var failed atomic.Int64
	for i := range 32 {
		wg.Go(func() {
			for j := range 50 {
				queue := fmt.Sprint("q", i%3)
				r, err := c.Publish(soon(t), queue, message("%d/%d", i, j))
				if err != nil || p.bodies(queue)[r.Sequence-1] != fmt.Sprintf("%d/%d", i, j) {
					failed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	require.Zero(t, failed.Load())
}

// A request that a node refuses fails with the error of the node. Other requests are not affected.
func TestErrorAffectsOneRequest(t *testing.T) { synctest.Test(t, testErrorAffectsOneRequest) }

func testErrorAffectsOneRequest(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{MaxMessageBytes: 100})
	codesOf := map[string]struct {
		code codes.Code
		want error
	}{
		"missing": {codes.NotFound, client.ErrQueueNotFound}, "full": {codes.ResourceExhausted, client.ErrLimit},
		"bad": {codes.InvalidArgument, client.ErrInvalid}, "fenced": {codes.Aborted, client.ErrFenced},
		"old": {codes.OutOfRange, client.ErrTooOld}, "corrupt": {codes.DataLoss, client.ErrDataLoss},
	}
	p.refuse = func(r *pb.PublishRequest) *pb.RequestError {
		if x, ok := codesOf[r.GetQueue()]; ok {
			return &pb.RequestError{Code: uint32(x.code), Message: "injected"}
		}
		return nil
	}
	for queue, x := range codesOf {
		_, err := c.Publish(soon(t), queue, message("x"))
		require.ErrorIs(t, err, x.want)
		require.Contains(t, err.Error(), "injected")
		var e *client.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, p.addrs[0], e.Address)
		_, err = c.Publish(soon(t), "good", message("x"))
		require.NoError(t, err)
	}
	_, err := c.Publish(soon(t), "good", message("%s", strings.Repeat("x", 101)))
	require.ErrorIs(t, err, client.ErrLimit)
	_, err = c.Publish(soon(t), "", message("x"))
	require.ErrorIs(t, err, client.ErrInvalid)
	_, err = c.Publish(soon(t), "good", client.Message{Properties: map[string]string{"k": "\xff"}})
	require.ErrorIs(t, err, client.ErrInvalid)
	require.Len(t, p.bodies("good"), len(codesOf))
}

// A refused retry does not determine the outcome of the first attempt, which may be committed.
func TestRefusedRetry(t *testing.T) { synctest.Test(t, testRefusedRetry) }

func testRefusedRetry(t *testing.T) {
	full := &pb.RequestError{Code: uint32(codes.ResourceExhausted), Reason: "DISK_LOW", Message: "injected"}
	p := newFakePair(t)
	c := p.client(client.Options{})
	p.onPublish = func(*fakeNode, *pb.PublishRequest) bool {
		p.onPublish = nil
		p.refuse = func(*pb.PublishRequest) *pb.RequestError { return full }
		return false // the response is lost
	}
	_, err := c.Publish(soon(t), "q", message("a"))
	require.ErrorIs(t, err, client.ErrLimit)
	require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	require.Equal(t, []string{"a"}, p.bodies("q"), "the first attempt was committed")
	_, err = c.Publish(soon(t), "q", message("b"))
	require.ErrorIs(t, err, client.ErrLimit)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
}

// A publish to a node that cannot acknowledge is retried until the node can, or until the context ends.
func TestPublishRetriedWhileBlocked(t *testing.T) { synctest.Test(t, testPublishRetriedWhileBlocked) }

func testPublishRetriedWhileBlocked(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	blocked := &pb.RequestError{Code: uint32(codes.Unavailable), Message: "no standby, no coordinator"}
	p.refuse = func(*pb.PublishRequest) *pb.RequestError { return blocked }
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := c.Publish(ctx, "q", message("a"))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, client.ErrUnavailable)
	require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	p.mu.Lock()
	p.refuse = nil
	p.mu.Unlock()
	_, err = c.Publish(soon(t), "q", message("b"))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, p.bodies("q"))
}

// Without an active node, the error of a call contains the last status of each node.
func TestNoActiveNode(t *testing.T) { synctest.Test(t, testNoActiveNode) }

func testNoActiveNode(t *testing.T) {
	p := newFakePair(t)
	p.nodes[0].server.Stop()
	c := p.client(client.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	_, err := admin.New(c).GetQueue(ctx, "q")
	require.ErrorIs(t, err, client.ErrUnavailable)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
	require.Contains(t, err.Error(), p.addrs[0])
	require.Contains(t, err.Error(), "refused")
	require.Contains(t, err.Error(), p.addrs[1]+": standby")
}

// A producer with the ID and the epoch of an earlier producer is rejected. A producer with a higher epoch is
// accepted.
func TestProducerEpoch(t *testing.T) { synctest.Test(t, testProducerEpoch) }

func testProducerEpoch(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	_, err := c.NewProducer(t.Context(), client.ProducerOptions{ID: "me"})
	require.ErrorIs(t, err, client.ErrInvalid)
	for i, epoch := range []uint32{1, 1, 2} {
		producer, err := c.NewProducer(t.Context(), client.ProducerOptions{ID: "me", Epoch: epoch})
		require.NoError(t, err)
		_, err = producer.Publish(soon(t), "q", message("%d", i))
		if i == 1 {
			require.ErrorIs(t, err, client.ErrSequenceReused)
		} else {
			require.NoError(t, err)
		}
		require.NoError(t, producer.Close())
	}
	require.Equal(t, []string{"0", "2"}, p.bodies("q"))
}

// Close fails pending publishes and later calls with ErrClosed. A second Close has no effect.
func TestCloseFailsPendingPublishes(t *testing.T) { synctest.Test(t, testCloseFailsPendingPublishes) }

func testCloseFailsPendingPublishes(t *testing.T) {
	p := newFakePair(t)
	p.setRole(0, pb.Role_ROLE_STANDBY)
	c, err := client.OpenWith(t.Context(), client.Options{
		Addresses: p.addrs, DialOptions: []grpc.DialOption{p.dialer()},
	})
	require.NoError(t, err)
	producer, err := c.NewProducer(t.Context(), client.ProducerOptions{})
	require.NoError(t, err)
	pending := producer.PublishAsync(soon(t), "q", message("a"))
	require.NoError(t, pending.Err(), "completed early")
	require.NoError(t, c.Close())
	_, err = pending.Wait(soon(t))
	require.Equal(t, err, pending.Err())
	require.ErrorIs(t, err, client.ErrClosed)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown, "was sent")
	require.NotErrorIs(t, err, client.ErrUnavailable)
	_, err = c.Publish(soon(t), "q", message("b"))
	require.ErrorIs(t, err, client.ErrClosed)
	require.NoError(t, c.Close())
}

// A transaction without a response is retried with the same sequence.
func TestTxnIsRetried(t *testing.T) { synctest.Test(t, testTxnIsRetried) }

func testTxnIsRetried(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	p.onPublish = func(*fakeNode, *pb.PublishRequest) bool { p.onPublish = nil; return false }
	res, err := c.Begin().Publish("a", message("1"), message("2")).Publish("b", message("3")).Commit(soon(t))
	require.NoError(t, err)
	require.Len(t, res.Results, 2)
	require.Equal(t, uint64(1), res.Results[0].FirstSequence)
	require.Equal(t, []string{"1", "2"}, p.bodies("a"))
	require.Equal(t, []string{"3"}, p.bodies("b"))
	_, err = c.Begin().Commit(soon(t))
	require.ErrorIs(t, err, client.ErrInvalid)
}

// If a node rejects an idle producer that it has evicted, the client continues under another identity. No message is
// lost or duplicated.
func TestEvictedProducer(t *testing.T) { synctest.Test(t, testEvictedProducer) }

func testEvictedProducer(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{})
	for i := range 3 {
		_, err := c.Publish(soon(t), "q", message("%d", i))
		require.NoError(t, err)
	}
	p.mu.Lock()
	clear(p.producers)
	evicted := func(r *pb.PublishRequest) bool {
		known := p.producers[fmt.Sprint(r.GetProducer().GetId(), "/", r.GetProducer().GetEpoch())]
		return known == nil && r.GetProducer().GetSequence() > 2
	}
	p.refuse = func(r *pb.PublishRequest) *pb.RequestError {
		if evicted(r) {
			return &pb.RequestError{Code: uint32(codes.OutOfRange), Reason: "PRODUCER_UNKNOWN", Message: "unknown producer"}
		}
		return nil
	}
	p.mu.Unlock()
	for i := range 3 {
		_, err := c.Publish(soon(t), "q", message("%d", 3+i))
		require.NoError(t, err)
	}
	require.Equal(t, []string{"0", "1", "2", "3", "4", "5"}, p.bodies("q"))
}

// A publish that was canceled before it was sent is not stored later.
func TestPublishCanceledBeforeSend(t *testing.T) { synctest.Test(t, testPublishCanceledBeforeSend) }

func testPublishCanceledBeforeSend(t *testing.T) {
	p := newFakePair(t)
	p.setRole(0, pb.Role_ROLE_STANDBY)
	c := p.client(client.Options{})
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		_, err := c.Publish(ctx, "q", message("canceled"))
		cancel()
		require.ErrorIs(t, err, client.ErrUnavailable)
		require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
	}
	p.setRole(0, pb.Role_ROLE_ACTIVE)
	_, err := c.Publish(soon(t), "q", message("stored"))
	require.NoError(t, err)
	require.Equal(t, []string{"stored"}, p.bodies("q"))
}

// A publish that the client rejects fails immediately. Flush returns all errors once.
func TestPendingFailures(t *testing.T) { synctest.Test(t, testPendingFailures) }

func testPendingFailures(t *testing.T) {
	p := newFakePair(t)
	c := p.client(client.Options{MaxMessageBytes: 10})
	producer, err := c.NewProducer(t.Context(), client.ProducerOptions{})
	require.NoError(t, err)
	large := producer.PublishAsync(soon(t), "q", client.Message{Body: make([]byte, 11)})
	require.ErrorIs(t, large.Err(), client.ErrLimit)
	_, err = large.Wait(soon(t))
	require.ErrorIs(t, err, client.ErrLimit)
	unnamed := producer.PublishBatchAsync(soon(t), "", []client.Message{message("a")})
	<-unnamed.Done()
	stored := producer.PublishBatchAsync(soon(t), "q", []client.Message{message("a"), message("b")})
	err = producer.Flush(soon(t))
	require.ErrorIs(t, err, client.ErrLimit)
	require.ErrorIs(t, err, client.ErrInvalid)
	require.Contains(t, err.Error(), "2 publishes")
	require.NoError(t, producer.Flush(soon(t)))
	require.NoError(t, stored.Err())
	require.Equal(t, []string{"a", "b"}, p.bodies("q"))
}

// Wait ends with its context; the publish continues.
func TestPendingWait(t *testing.T) { synctest.Test(t, testPendingWait) }

func testPendingWait(t *testing.T) {
	p := newFakePair(t)
	p.setRole(0, pb.Role_ROLE_STANDBY)
	c := p.client(client.Options{})
	producer, err := c.NewProducer(t.Context(), client.ProducerOptions{})
	require.NoError(t, err)
	pending := producer.PublishAsync(soon(t), "q", message("a"))
	_, err = pending.Wait(briefly(t))
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, client.ErrOutcomeUnknown)
	require.NoError(t, pending.Err())
	p.setRole(0, pb.Role_ROLE_ACTIVE)
	r, err := pending.Wait(soon(t))
	require.NoError(t, err)
	require.Equal(t, uint64(1), r.Sequence)
}
