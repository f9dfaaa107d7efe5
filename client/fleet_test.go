// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
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
	"github.com/lockstep-mq/lockstep/test/simnet"
)

// fakeFleet is three pairs, a, b and c, in one network. The clients are configured with the addresses of pair a.
type fakeFleet struct {
	pairs map[string]*fakePair

	mu     sync.Mutex // guards the fields below; may be locked while the mutex of a pair is held
	owners map[string]fakeOwner
	// seen are the owners that the directory copy of a pair contains, by pair and queue, if they differ from owners.
	seen map[string]fakeOwner
	// refused counts the responses with NOT_OWNER.
	refused int
}

// fakeOwner is the owner of a queue. If pair is empty, the directory does not respond.
type fakeOwner struct {
	pair  string
	epoch uint64
}

// newFakeFleet creates a fleet. Pair a owns all queues that own does not assign to another pair.
func newFakeFleet(t *testing.T) *fakeFleet {
	f := &fakeFleet{
		pairs: make(map[string]*fakePair), owners: make(map[string]fakeOwner), seen: make(map[string]fakeOwner),
	}
	network := simnet.New(simnet.Options{})
	for i, name := range []string{"a", "b", "c"} {
		p := newFakePairAt(t, network, i)
		p.owner = func(queue string) *pb.NotOwner { return f.notOwner(name, queue) }
		f.pairs[name] = p
	}
	return f
}

func (f *fakeFleet) client(o client.Options) *client.Client { return f.pairs["a"].client(o) }

// own assigns queues to a pair in a new epoch.
func (f *fakeFleet) own(pair string, queues ...string) {
	f.mu.Lock()
	for _, q := range queues {
		f.owners[q] = fakeOwner{pair, f.owners[q].epoch + 1}
	}
	f.mu.Unlock()
	for _, p := range f.pairs {
		p.mu.Lock()
		p.announce()
		p.mu.Unlock()
	}
}

// see sets the owner that the directory copy of a pair contains.
func (f *fakeFleet) see(pair, queue string, owner fakeOwner) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen[pair+"/"+queue] = owner
}

func (f *fakeFleet) notOwner(pair, queue string) *pb.NotOwner {
	f.mu.Lock()
	defer f.mu.Unlock()
	owner, ok := f.owners[queue]
	if !ok || owner.pair == pair {
		return nil
	}
	if seen, ok := f.seen[pair+"/"+queue]; ok {
		owner = seen
	}
	f.refused++
	n := &pb.NotOwner{Queue: queue, Pair: owner.pair, Epoch: owner.epoch}
	if owner.pair != "" {
		n.Addresses = f.pairs[owner.pair].addrs
	}
	return n
}

func (f *fakeFleet) refusals() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.refused
}

// owns returns the error for a queue that the pair does not own. The caller holds mu.
func (p *fakePair) owns(queue string) error {
	if p.owner == nil {
		return nil
	}
	n := p.owner(queue)
	switch {
	case n == nil:
		return nil
	case n.GetPair() == "":
		return answer(codes.Unavailable, "DIRECTORY_UNAVAILABLE", false)
	}
	st, err := status.New(codes.FailedPrecondition, "not the owner").WithDetails(
		&errdetails.ErrorInfo{Reason: "NOT_OWNER", Domain: "lockstep.v1"}, n)
	if err != nil {
		return err
	}
	return st.Err()
}

func (n *fakeNode) ownsQueue(queue string) error {
	n.pair.mu.Lock()
	defer n.pair.mu.Unlock()
	return n.pair.owns(queue)
}

// ownsAll returns an error unless the pair owns all queues of a transaction. The caller holds mu.
func (p *fakePair) ownsAll(ops []*pb.Operation) error {
	var refusal error
	owned := 0
	for _, op := range ops {
		err := p.owns(op.GetPublish().GetQueue() + op.GetAck().GetQueue())
		if err == nil {
			owned++
		} else {
			refusal = err
		}
	}
	if refusal != nil && owned > 0 {
		return answer(codes.FailedPrecondition, "CROSS_PAIR", false)
	}
	return refusal
}

// refusedPublish returns the error of a request for a queue that the pair does not own. A retry is refused in the log,
// unless an earlier attempt was committed. The caller holds mu.
func (p *fakePair) refusedPublish(r *pb.PublishRequest) *pb.RequestError {
	if p.owner == nil || p.executed(r) {
		return nil
	}
	from := r.GetProducer()
	n := p.owner(r.GetQueue())
	switch {
	case n == nil:
		return nil
	case n.GetPair() == "":
		return &pb.RequestError{
			Code: uint32(codes.Unavailable), Reason: "DIRECTORY_UNAVAILABLE", Settled: from.GetRetry(),
		}
	default:
		return &pb.RequestError{
			Code: uint32(codes.FailedPrecondition), Reason: "NOT_OWNER", NotOwner: n, Settled: from.GetRetry(),
		}
	}
}

// executed reports whether an earlier attempt of a request was committed. The caller holds mu.
func (p *fakePair) executed(r *pb.PublishRequest) bool {
	from := r.GetProducer()
	known := p.producers[fmt.Sprint(from.GetId(), "/", from.GetEpoch())]
	return known != nil && known.results[from.GetSequence()] != nil
}

// numbers returns "0", "1" and so on.
func numbers(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

// A full pipeline is redirected: the publishes to each queue are stored once, in the order of the calls, and later
// publishes are sent to the owner directly.
func TestFleetPublishOrder(t *testing.T) { synctest.Test(t, testFleetPublishOrder) }

func testFleetPublishOrder(t *testing.T) {
	f := newFakeFleet(t)
	f.own("b", "qb", "qb2")
	f.own("c", "qc")
	c := f.client(client.Options{})
	p, err := c.NewProducer(t.Context(), client.ProducerOptions{BatchMessages: 3, Window: 20})
	require.NoError(t, err)
	queues := []string{"qa", "qb", "qc", "qb2"}
	for i := range 500 {
		for _, q := range queues {
			p.PublishAsync(t.Context(), q, message("%d", i))
		}
	}
	require.NoError(t, p.Flush(soon(t)))
	for q, pair := range map[string]string{"qa": "a", "qb": "b", "qb2": "b", "qc": "c"} {
		require.Equal(t, numbers(500), f.pairs[pair].bodies(q), q)
	}
	require.Empty(t, f.pairs["a"].bodies("qb"))

	refused := f.refusals()
	r, err := p.Publish(soon(t), "qb", message("500"))
	require.NoError(t, err)
	require.EqualValues(t, 501, r.Sequence)
	require.Equal(t, f.pairs["b"].addrs[0], r.Address)
	_, err = c.Publish(soon(t), "qc", message("500"))
	require.NoError(t, err)
	require.Equal(t, refused, f.refusals(), "the owners are cached")
}

// The actives of both pairs change while a full pipeline is redirected, and responses are lost.
func TestFleetPublishDuringFailovers(t *testing.T) { synctest.Test(t, testFleetPublishDuringFailovers) }

func testFleetPublishDuringFailovers(t *testing.T) {
	f := newFakeFleet(t)
	f.own("b", "qb")
	c := f.client(client.Options{})
	p, err := c.NewProducer(t.Context(), client.ProducerOptions{BatchMessages: 2, Window: 10})
	require.NoError(t, err)
	f.pairs["a"].handOver(7)
	f.pairs["b"].handOver(5)
	for i := range 300 {
		p.PublishAsync(t.Context(), "qa", message("%d", i))
		p.PublishAsync(t.Context(), "qb", message("%d", i))
	}
	require.NoError(t, p.Flush(soon(t)))
	require.Equal(t, numbers(300), f.pairs["a"].bodies("qa"))
	require.Equal(t, numbers(300), f.pairs["b"].bodies("qb"))
}

// The owner of a queue changes several times during a series of publishes, while the actives change. The order of the
// publishes is retained in each pair.
func TestFleetOwnerChanges(t *testing.T) { synctest.Test(t, testFleetOwnerChanges) }

func testFleetOwnerChanges(t *testing.T) {
	f := newFakeFleet(t)
	f.own("b", "q")
	c := f.client(client.Options{})
	p, err := c.NewProducer(t.Context(), client.ProducerOptions{BatchMessages: 2, Window: 10})
	require.NoError(t, err)
	f.pairs["a"].handOver(11)
	f.pairs["b"].handOver(11)
	var all []*client.Pending
	for i, owner := range []string{"b", "c", "a", "b", "a"} {
		f.own(owner, "q")
		for j := range 100 {
			all = append(all, p.PublishAsync(t.Context(), "q", message("%03d", 100*i+j)))
		}
		pause(time.Duration(i) * time.Millisecond)
	}
	require.NoError(t, p.Flush(soon(t)))
	stored := 0
	for name, pair := range f.pairs {
		bodies := pair.bodies("q")
		require.True(t, slices.IsSorted(bodies), "pair %s: %v", name, bodies)
		stored += len(bodies)
	}
	require.Equal(t, len(all), stored)
}

// A request with an unknown outcome is retried at the first pair, under the same identity, before later publishes to
// the queue are sent to the owner.
func TestFleetUnknownOutcome(t *testing.T) { synctest.Test(t, testFleetUnknownOutcome) }

func testFleetUnknownOutcome(t *testing.T) {
	f := newFakeFleet(t)
	f.own("a", "q")
	c := f.client(client.Options{})
	a := f.pairs["a"]
	p, err := c.NewProducer(t.Context(), client.ProducerOptions{})
	require.NoError(t, err)
	a.loseResponse()
	first := p.PublishAsync(t.Context(), "q", message("0"))
	synctest.Wait()
	second := p.PublishAsync(t.Context(), "q", message("1"))
	f.own("b", "q")
	pause(time.Second)
	require.Empty(t, f.pairs["b"].bodies("q"))
	a.takeOver(1)
	r, err := first.Wait(soon(t))
	require.NoError(t, err)
	require.True(t, r.Duplicate)
	_, err = second.Wait(soon(t))
	require.NoError(t, err)
	require.Equal(t, []string{"0"}, a.bodies("q"))
	require.Equal(t, []string{"1"}, f.pairs["b"].bodies("q"))
}

// Requests have no response. On the next stream, the pair refuses the first of them with NOT_OWNER. Then the stream
// ends again, and the queue returns to the pair. The refused publishes are stored before the others.
func TestFleetQueueReturnsDuringRetries(t *testing.T) {
	for _, c := range []retriesCase{
		{streams: 2, end: 3},
		{streams: 3, end: 3},
		{streams: 2, end: 2, first: 2}, // the second stream also contains new requests
	} {
		simulated(t, fmt.Sprintf("%+v", c), c.test)
	}
}

type retriesCase struct {
	streams int // streams that end
	end     int // request that ends a stream, except the first one
	first   int // publishes before the first stream ends; 0 if all
}

func (o retriesCase) test(t *testing.T) {
	f := newFakeFleet(t)
	f.own("a", "q")
	a := f.pairs["a"]
	a.mu.Lock()
	a.delay = time.Millisecond // the client sends further frames in the meantime
	a.mu.Unlock()
	stream, requests, refused := 1, 0, 0
	a.setEndStream(func(r *pb.PublishStreamRequest) error {
		if stream > o.streams {
			return nil
		}
		requests++
		switch {
		case stream == 1 || requests == o.end:
			go f.own("a", "q")
			stream, requests = stream+1, 0
			return status.Error(codes.Unavailable, "gone")
		case requests == 1:
			require.Equal(t, "q", r.GetPublish().GetQueue())
			require.Equal(t, stream == 2, r.GetPublish().GetProducer().GetRetry())
			f.mu.Lock()
			f.owners["q"] = fakeOwner{"b", f.owners["q"].epoch + 1}
			f.mu.Unlock()
			refused++
		}
		return nil
	})
	p, err := f.client(client.Options{}).NewProducer(t.Context(), client.ProducerOptions{BatchMessages: 1, Window: 8})
	require.NoError(t, err)
	for i := range 20 {
		p.PublishAsync(t.Context(), "q", message("%02d", i))
		if i+1 == o.first {
			pause(2 * time.Millisecond)
		}
		if i >= o.first {
			p.PublishAsync(t.Context(), "other", message("%02d", i))
		}
	}
	require.NoError(t, p.Flush(soon(t)))
	require.Equal(t, o.streams-1, refused)
	require.Equal(t, numbered(0, 20), a.bodies("q"))
	require.Equal(t, numbered(o.first, 20), a.bodies("other"))
	require.Empty(t, f.pairs["b"].bodies("q"))
}

func numbered(from, to int) (out []string) {
	for i := from; i < to; i++ {
		out = append(out, fmt.Sprintf("%02d", i))
	}
	return out
}

// The first attempt of a publish has no response, and the pair refuses the retry with NOT_OWNER. Unless the refusal is
// settled, the publish is not sent to the owner, because it may be committed at the first pair.
func TestFleetRefusedRetry(t *testing.T) {
	for _, settled := range []bool{false, true} {
		simulated(t, fmt.Sprintf("settled=%t", settled), func(t *testing.T) {
			f := newFakeFleet(t)
			a := f.pairs["a"]
			attempts := 0
			a.setEndStream(func(*pb.PublishStreamRequest) error {
				if attempts++; attempts == 1 {
					return status.Error(codes.Unavailable, "gone")
				}
				return nil
			})
			a.mu.Lock()
			a.refuse = func(r *pb.PublishRequest) *pb.RequestError {
				require.True(t, r.GetProducer().GetRetry())
				return &pb.RequestError{
					Code: uint32(codes.FailedPrecondition), Reason: "NOT_OWNER", Settled: settled,
					NotOwner: &pb.NotOwner{Queue: "q", Pair: "b", Epoch: 1, Addresses: f.pairs["b"].addrs},
				}
			}
			a.mu.Unlock()
			c := f.client(client.Options{})
			_, err := c.Publish(soon(t), "q", message("x"))
			if settled {
				require.NoError(t, err)
				require.Equal(t, []string{"x"}, f.pairs["b"].bodies("q"))
				return
			}
			require.ErrorIs(t, err, client.ErrOutcomeUnknown)
			require.Empty(t, f.pairs["b"].bodies("q"))
		})
	}
}

// Two pairs name each other. The client waits between the attempts, reports both pairs, and succeeds when one of the
// pairs owns the queue.
func TestFleetCycle(t *testing.T) { synctest.Test(t, testFleetCycle) }

func testFleetCycle(t *testing.T) {
	f := newFakeFleet(t)
	f.own("c", "q")
	f.see("a", "q", fakeOwner{"b", 5})
	f.see("b", "q", fakeOwner{"a", 3})
	c := f.client(client.Options{})
	adm := admin.New(c)
	operations := map[string]func(context.Context) error{
		"publish": func(ctx context.Context) error { _, err := c.Publish(ctx, "q", message("x")); return err },
		"commit": func(ctx context.Context) error {
			_, err := c.Begin().Publish("q", message("x")).Commit(ctx)
			return err
		},
		"alter": func(ctx context.Context) error {
			_, err := adm.AlterQueue(ctx, "q", admin.QueueConfig{})
			return err
		},
		"consume": func(ctx context.Context) error {
			co, err := c.Consume(ctx, "q", client.ConsumerOptions{})
			if err != nil {
				return err
			}
			return co.Close()
		},
	}
	for name, call := range operations {
		before := f.refusals()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := call(ctx)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded, name)
		require.ErrorIs(t, err, client.ErrUnavailable, name)
		require.NotErrorIs(t, err, client.ErrOutcomeUnknown, name)
		for _, pair := range []string{"a", "b"} {
			require.Positive(t, strings.Count(err.Error(), "names pair "+pair), "%s: %v", name, err)
		}
		require.Less(t, f.refusals()-before, 1000, name)
	}
	f.own("b", "q")
	for name, call := range operations {
		require.NoError(t, call(soon(t)), name)
	}
}

// A stale directory of a third pair does not replace a newer entry of the cache.
func TestFleetHigherEpochWins(t *testing.T) { synctest.Test(t, testFleetHigherEpochWins) }

func testFleetHigherEpochWins(t *testing.T) {
	f := newFakeFleet(t)
	for range 5 {
		f.own("b", "q")
	}
	c := f.client(client.Options{})
	_, err := c.Publish(soon(t), "q", message("0"))
	require.NoError(t, err)
	f.own("c", "q") // pair b has the new entry, pair a an outdated one
	f.see("a", "q", fakeOwner{"b", 5})
	_, err = c.Publish(soon(t), "q", message("1"))
	require.NoError(t, err)
	refused := f.refusals()
	require.NoError(t, c.Close())
	require.Equal(t, []string{"1"}, f.pairs["c"].bodies("q"))
	require.Equal(t, 2, refused)
}

// Without a directory, publishes to the queue wait, and publishes to other queues of the pair continue.
func TestFleetDirectoryUnavailable(t *testing.T) { synctest.Test(t, testFleetDirectoryUnavailable) }

func testFleetDirectoryUnavailable(t *testing.T) {
	f := newFakeFleet(t)
	f.own("b", "q")
	f.see("a", "q", fakeOwner{})
	c := f.client(client.Options{})
	var all []*client.Pending
	p, err := c.NewProducer(t.Context(), client.ProducerOptions{})
	require.NoError(t, err)
	for i := range 10 {
		all = append(all, p.PublishAsync(t.Context(), "q", message("%d", i)))
		_, err := p.Publish(soon(t), "other", message("%d", i))
		require.NoError(t, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = admin.New(c).AlterQueue(ctx, "q", admin.QueueConfig{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	var e *client.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "DIRECTORY_UNAVAILABLE", e.Reason)
	require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
	require.Less(t, f.refusals(), 200)
	f.see("a", "q", fakeOwner{"b", 1})
	for _, x := range all {
		_, err := x.Wait(soon(t))
		require.NoError(t, err)
	}
	require.Equal(t, numbers(10), f.pairs["b"].bodies("q"))
}

// A queue is created at the pair that has refused publishes to it. The node refuses later requests on the same stream,
// and all publishes are stored in the order of the calls.
func TestFleetQueueCreatedAfterRefusals(t *testing.T) {
	synctest.Test(t, testFleetQueueCreatedAfterRefusals)
}

func testFleetQueueCreatedAfterRefusals(t *testing.T) {
	for _, seen := range []fakeOwner{{}, {"b", 1}} {
		f := newFakeFleet(t)
		f.own("c", "q")
		f.see("a", "q", seen)
		f.see("b", "q", fakeOwner{"a", 2})
		c := f.client(client.Options{})
		p, err := c.NewProducer(t.Context(), client.ProducerOptions{BatchMessages: 1})
		require.NoError(t, err)
		for i := range 100 {
			p.PublishAsync(t.Context(), "q", message("%d", i))
			if i == 50 {
				pause(time.Second)
				f.own("a", "q")
			}
		}
		require.NoError(t, p.Flush(soon(t)))
		require.Equal(t, numbers(100), f.pairs["a"].bodies("q"))
		require.NoError(t, c.Close())
	}
}

// Administrative calls follow NOT_OWNER, and later calls are sent to the owner directly.
func TestFleetAdmin(t *testing.T) { synctest.Test(t, testFleetAdmin) }

func testFleetAdmin(t *testing.T) {
	f := newFakeFleet(t)
	f.own("b", "q")
	c := f.client(client.Options{})
	adm := admin.New(c)
	b := f.pairs["b"]
	b.chosen = func() error { return nil }
	b.browse = func(_ *pb.BrowseRequest, send func(*pb.BrowseResponse)) error {
		send(&pb.BrowseResponse{Messages: []*pb.StoredMessage{{Sequence: 1, Message: &pb.Message{}}}})
		return nil
	}
	for range 2 {
		_, err := adm.AlterQueue(soon(t), "q", admin.QueueConfig{})
		require.NoError(t, err)
		_, err = adm.MoveMessages(soon(t), "q", []admin.SequenceRange{{First: 1, Last: 1}}, admin.MoveOptions{})
		require.NoError(t, err)
		read := 0
		for _, err := range c.Browse(soon(t), "q", client.BrowseOptions{}) {
			require.NoError(t, err)
			read++
		}
		require.Equal(t, 1, read)
	}
	require.Equal(t, 1, f.refusals())
	b.mu.Lock()
	require.Len(t, b.altered, 2)
	b.mu.Unlock()
	active, err := c.WaitActive(soon(t))
	require.NoError(t, err)
	require.Equal(t, f.pairs["a"].addrs[0], active.Address)

	fixed := f.client(client.Options{FixedAddresses: true})
	_, err = admin.New(fixed).AlterQueue(soon(t), "q", admin.QueueConfig{})
	require.ErrorIs(t, err, client.ErrRefused)
	_, err = fixed.Publish(soon(t), "q", message("x"))
	require.ErrorIs(t, err, client.ErrRefused)
	_, err = fixed.Consume(soon(t), "q", client.ConsumerOptions{})
	require.ErrorIs(t, err, client.ErrRefused)
}

// A direct request to a node of another pair does not make this node a node of the home pair.
func TestFleetNodeOfAnotherPair(t *testing.T) { synctest.Test(t, testFleetNodeOfAnotherPair) }

func testFleetNodeOfAnotherPair(t *testing.T) {
	f := newFakeFleet(t)
	f.own("b", "qb")
	a, b := f.pairs["a"], f.pairs["b"]
	b.takeOver(0) // a higher term than that of pair a
	c := f.client(client.Options{})
	adm := admin.New(c)
	status := func(address string) pb.Role {
		n, err := adm.Node(address)
		require.NoError(t, err)
		require.Equal(t, address, n.Address())
		st, err := n.Status(soon(t))
		require.NoError(t, err)
		return st.GetRole()
	}
	require.Equal(t, pb.Role_ROLE_ACTIVE, status(b.addrs[0]))
	require.Equal(t, pb.Role_ROLE_STANDBY, status(b.addrs[1]))
	require.Equal(t, pb.Role_ROLE_STANDBY, status(a.addrs[1]))
	pause(time.Minute)
	require.ElementsMatch(t, a.addrs, adm.Addresses())
	a.setRole(0, pb.Role_ROLE_STANDBY)
	synctest.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := c.WaitActive(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	a.setRole(0, pb.Role_ROLE_ACTIVE)

	r, err := c.Publish(soon(t), "qa", message("x"))
	require.NoError(t, err)
	require.Equal(t, a.addrs[0], r.Address)
	r, err = c.Publish(soon(t), "qb", message("x"))
	require.NoError(t, err)
	require.Equal(t, b.addrs[0], r.Address)
	require.Equal(t, pb.Role_ROLE_STANDBY, status(b.addrs[1]), "after the client uses the pair")
	_, err = adm.Node("invalid")
	require.ErrorIs(t, err, client.ErrInvalid)
	require.NoError(t, c.Close())
	for _, address := range []string{a.addrs[0], b.addrs[0], f.pairs["c"].addrs[0]} {
		_, err = adm.Node(address)
		require.ErrorIs(t, err, client.ErrClosed)
	}
}

// A transaction is sent to the owner under an identity of that pair. A transaction over queues of two pairs is refused.
func TestFleetTransaction(t *testing.T) { synctest.Test(t, testFleetTransaction) }

func testFleetTransaction(t *testing.T) {
	f := newFakeFleet(t)
	f.own("a", "qa")
	f.own("b", "qb", "qb2")
	c := f.client(client.Options{})
	for i := range 4 {
		_, err := c.Begin().Publish("qb", message("%d", i)).Publish("qb2", message("%d", i)).Commit(soon(t))
		require.NoError(t, err)
		_, err = c.Begin().Publish("qa", message("%d", i)).Commit(soon(t))
		require.NoError(t, err)
	}
	require.Equal(t, numbers(4), f.pairs["b"].bodies("qb"))
	require.Equal(t, numbers(4), f.pairs["b"].bodies("qb2"))
	require.Equal(t, numbers(4), f.pairs["a"].bodies("qa"))
	a, b := f.pairs["a"].producerIDs(), f.pairs["b"].producerIDs()
	require.NotEmpty(t, a)
	for _, id := range b {
		require.NotContains(t, a, id)
	}

	_, err := c.Begin().Publish("qa", message("x")).Publish("qb", message("x")).Commit(soon(t))
	require.ErrorIs(t, err, client.ErrRefused)
	var e *client.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "CROSS_PAIR", e.Reason)

	co, err := c.Consume(soon(t), "qb", client.ConsumerOptions{})
	require.NoError(t, err)
	d, err := co.Receive(soon(t))
	require.NoError(t, err)
	_, err = c.Begin().Publish("qb2", message("4")).Take(d).Commit(soon(t))
	require.NoError(t, err)
	require.NoError(t, c.Begin().Publish("qb", message("4")).Prepare(soon(t), "x"))
	require.Equal(t, numbers(5), f.pairs["b"].bodies("qb"))
}

func (p *fakePair) producerIDs() (ids []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.producers {
		ids = append(ids, id)
	}
	return ids
}

// The first attempt of a transaction has no response, and the pair refuses the retry with NOT_OWNER. Unless the refusal
// is settled, the transaction is not sent to the owner, because it may be committed at the first pair.
func TestFleetTransactionWithUnknownOutcome(t *testing.T) {
	for _, settled := range []bool{false, true} {
		simulated(t, fmt.Sprintf("settled=%t", settled), func(t *testing.T) {
			f := newFakeFleet(t)
			f.own("a", "q")
			a := f.pairs["a"]
			attempts := 0
			a.mu.Lock()
			a.refuseCommit = func(*pb.CommitRequest) error {
				if attempts++; attempts == 1 {
					return status.Error(codes.Unavailable, "gone")
				}
				st, err := status.Convert(answer(codes.FailedPrecondition, "NOT_OWNER", settled)).WithDetails(
					&pb.NotOwner{Queue: "q", Pair: "b", Epoch: 2, Addresses: f.pairs["b"].addrs})
				require.NoError(t, err)
				return st.Err()
			}
			a.mu.Unlock()
			c := f.client(client.Options{})
			f.own("a", "q")
			f.mu.Lock()
			delete(f.owners, "q") // the hook responds
			f.mu.Unlock()
			txn := c.Begin().Publish("q", message("x"))
			_, err := txn.Commit(soon(t))
			if settled {
				require.NoError(t, err)
				require.Equal(t, []string{"x"}, f.pairs["b"].bodies("q"))
				return
			}
			require.ErrorIs(t, err, client.ErrOutcomeUnknown)
			require.ErrorIs(t, err, client.ErrRefused)
			_, err = txn.Commit(soon(t))
			require.ErrorIs(t, err, client.ErrOutcomeUnknown)
			require.Empty(t, f.pairs["b"].bodies("q"))
			require.Equal(t, 3, attempts)
		})
	}
}

// The first attempt of a transaction has no response, and the retry receives a settled refusal that may be temporary.
// It applies to all attempts under the sequence, so that the next attempt has another one.
func TestFleetTransactionAfterSettledRefusal(t *testing.T) {
	for _, reason := range []string{"DIRECTORY_UNAVAILABLE", "NOT_OWNER"} {
		simulated(t, reason, func(t *testing.T) {
			f := newFakeFleet(t)
			a := f.pairs["a"]
			var seen []*pb.Producer
			a.mu.Lock()
			a.refuseCommit = func(r *pb.CommitRequest) error {
				switch seen = append(seen, r.GetProducer()); {
				case len(seen) == 1:
					return status.Error(codes.Unavailable, "gone")
				case r.GetProducer().GetSequence() != seen[0].GetSequence(), r.GetProducer().GetId() != seen[0].GetId():
					return nil
				case reason == "NOT_OWNER":
					st, err := status.Convert(answer(codes.FailedPrecondition, reason, true)).WithDetails(
						&pb.NotOwner{Queue: "q", Pair: "a", Epoch: 2, Addresses: a.addrs})
					require.NoError(t, err)
					return st.Err()
				default:
					return answer(codes.Unavailable, reason, true)
				}
			}
			a.mu.Unlock()
			_, err := f.client(client.Options{}).Begin().Publish("q", message("x")).Commit(soon(t))
			require.NoError(t, err)
			require.Len(t, seen, 3)
			require.True(t, seen[1].GetRetry())
			require.False(t, seen[2].GetRetry())
			require.Equal(t, []string{"x"}, a.bodies("q"))
		})
	}
}

// A consumer attaches at the owner. When the queue has another owner, the consumer attaches there, and its earlier
// deliveries can no longer be answered.
func TestFleetConsumer(t *testing.T) { synctest.Test(t, testFleetConsumer) }

func testFleetConsumer(t *testing.T) {
	f := newFakeFleet(t)
	f.own("b", "q")
	c := f.client(client.Options{})
	co, err := c.Consume(soon(t), "q", client.ConsumerOptions{})
	require.NoError(t, err)
	old := f.pairs["b"].hold(t, c, co, "x", "y", "z")
	require.NoError(t, old[0].AckSync(soon(t)))
	f.pairs["b"].takeOver(1)
	f.pairs["b"].setRole(0, pb.Role_ROLE_STANDBY)
	require.NoError(t, old[1].AckSync(soon(t)))
	require.Equal(t, 2, f.pairs["b"].ackedCount("q"))

	f.own("c", "q")
	_, err = c.Publish(soon(t), "q", message("new"))
	require.NoError(t, err)
	d, err := co.Receive(soon(t))
	require.NoError(t, err)
	require.Equal(t, "new", string(d.Body))
	require.EqualValues(t, 1, d.Sequence)
	require.ErrorIs(t, old[2].Ack(), client.ErrInvalid)
	require.NoError(t, d.AckSync(soon(t)))
	require.Equal(t, 1, f.pairs["c"].ackedCount("q"))
	require.Equal(t, 2, f.pairs["b"].ackedCount("q"))
	require.NoError(t, co.Close())
}

// Close completes all pending publishes, including those that wait for a response of the previous owner.
func TestFleetClose(t *testing.T) { synctest.Test(t, testFleetClose) }

func testFleetClose(t *testing.T) {
	f := newFakeFleet(t)
	f.own("b", "qb")
	f.own("c", "cycle", "unavailable")
	f.see("a", "cycle", fakeOwner{"b", 1})
	f.see("b", "cycle", fakeOwner{"a", 1})
	f.see("a", "unavailable", fakeOwner{})
	c := f.client(client.Options{})
	p, err := c.NewProducer(t.Context(), client.ProducerOptions{})
	require.NoError(t, err)
	f.pairs["b"].setRole(0, pb.Role_ROLE_STANDBY)
	waiting := make(map[string]*client.Pending)
	for _, q := range []string{"qb", "cycle", "unavailable"} {
		waiting[q] = p.PublishAsync(t.Context(), q, message("x"))
	}
	_, err = p.Publish(soon(t), "qa", message("x"))
	require.NoError(t, err)
	pause(time.Second)
	require.NoError(t, p.Close())
	for q, x := range waiting {
		_, err := x.Wait(t.Context())
		require.ErrorIs(t, err, client.ErrClosed, q)
		require.NotErrorIs(t, err, client.ErrOutcomeUnknown, q)
	}
	require.ErrorIs(t, p.Flush(soon(t)), client.ErrClosed)
}

// A publish that waits for a pair without an active node can be canceled, and MaxPendingBytes is the total of all
// pairs.
func TestFleetCanceledPublish(t *testing.T) { synctest.Test(t, testFleetCanceledPublish) }

func testFleetCanceledPublish(t *testing.T) {
	f := newFakeFleet(t)
	f.own("b", "qb")
	c := f.client(client.Options{})
	p, err := c.NewProducer(t.Context(), client.ProducerOptions{MaxPendingBytes: 1000})
	require.NoError(t, err)
	f.pairs["b"].setRole(0, pb.Role_ROLE_STANDBY)
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = p.Publish(ctx, "qb", client.Message{Body: make([]byte, 900)})
		cancel()
		require.ErrorIs(t, err, client.ErrUnavailable)
		require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
		_, err = p.Publish(soon(t), "qa", client.Message{Body: make([]byte, 900)})
		require.NoError(t, err, "the canceled publish uses no memory")
	}
	require.NoError(t, p.Flush(soon(t)))

	pending := p.PublishAsync(t.Context(), "qb", client.Message{Body: make([]byte, 900)})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = p.Publish(ctx, "qa", client.Message{Body: make([]byte, 900)})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	f.pairs["b"].setRole(0, pb.Role_ROLE_ACTIVE)
	_, err = pending.Wait(soon(t))
	require.NoError(t, err)
	require.Len(t, f.pairs["b"].bodies("qb"), 1)
}
