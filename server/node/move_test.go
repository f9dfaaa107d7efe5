// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/server/ops/mover"
)

// moveSteps stops the moves to a pair before a step.
type moveSteps struct {
	mu      sync.Mutex // guards the fields below
	at      string
	err     error         // of the step
	reached chan struct{} // closed before the step
	resume  chan struct{}
}

// stopAt stops the next move before a step. The move continues when release is called.
func (s *moveSteps) stopAt(step string) (reached <-chan struct{}, release func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at, s.reached, s.resume = step, make(chan struct{}), make(chan struct{})
	return s.reached, sync.OnceFunc(func() { close(s.resume) })
}

func (s *moveSteps) step(ctx context.Context, step string) error {
	s.mu.Lock()
	stop := s.at == step
	if stop {
		s.at = ""
	}
	reached, resume, err := s.reached, s.resume, s.err
	s.mu.Unlock()
	if !stop {
		return nil
	}
	close(reached)
	select {
	case <-resume:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fail makes the step at which a move is stopped fail.
func (s *moveSteps) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// moveFleet is a testFleet in which moves to pair b can be stopped, and nodes can be restarted.
type moveFleet struct {
	*testFleet
	steps moveSteps
}

func startMoveFleet(t *testing.T) *moveFleet {
	t.Helper()
	f := &moveFleet{testFleet: startFleet(t)}
	f.a, f.b = f.restart(f.a), f.restart(f.b)
	return f
}

// restart starts a node again, at the same address.
func (f *moveFleet) restart(n *testNode) *testNode {
	f.t.Helper()
	n.stop()
	c := n.config
	c.Listen = n.ready.Address
	o := node.Options{}
	if c.Fleet.Pair == "b" {
		o.Environment.MoveStep = f.steps.step
	}
	n = startIn(f.t, c, o)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	return n
}

func (f *moveFleet) mover() pb.FleetServiceClient { return pb.NewFleetServiceClient(f.b.conn) }

// move begins a move to pair b.
func (f *moveFleet) move(queues ...string) uint64 {
	f.t.Helper()
	var resp *pb.MoveQueuesResponse
	require.Eventually(f.t, func() (moved bool) {
		var err error
		resp, err = f.mover().MoveQueues(f.t.Context(), &pb.MoveQueuesRequest{Queues: queues})
		return err == nil
	}, testTimeout, 5*time.Millisecond, "the pair must be registered")
	return resp.GetEpoch()
}

// ended waits until a move has ended.
func (f *moveFleet) ended(epoch uint64) {
	f.t.Helper()
	var list *pb.ListMovesResponse
	defer func() {
		if f.t.Failed() {
			f.t.Log(list)
		}
	}()
	require.Eventually(f.t, func() bool {
		var err error
		list, err = f.mover().ListMoves(f.t.Context(), &pb.ListMovesRequest{})
		return err == nil && list.GetCurrent() && !slices.ContainsFunc(list.GetMoves(), func(m *pb.FleetMove) bool {
			return m.GetEpoch() == epoch && m.GetPhase() < pb.MovePhase_MOVE_PHASE_DONE
		})
	}, testTimeout, 5*time.Millisecond, "the move must end")
}

// fill creates a queue at pair a, with n messages.
func (f *moveFleet) fill(queue string, n int) {
	f.t.Helper()
	require.NoError(f.t, f.create(queue, admin.CreateQueueOptions{}))
	for i := range n {
		_, err := f.client.Publish(f.t.Context(), queue, message(strconv.Itoa(i)))
		require.NoError(f.t, err)
	}
}

// drain requires that the queue contains n messages from fill.
func (f *moveFleet) drain(queue string, n int) {
	f.t.Helper()
	co, err := f.client.Consume(f.t.Context(), queue, client.ConsumerOptions{})
	require.NoError(f.t, err)
	for i := range n {
		d, err := co.Receive(f.t.Context())
		require.NoError(f.t, err)
		require.Equal(f.t, strconv.Itoa(i), string(d.Body), queue)
		require.NoError(f.t, d.AckSync(f.t.Context()))
	}
	require.NoError(f.t, co.Close())
	info, err := f.admin.GetQueue(f.t.Context(), queue)
	require.NoError(f.t, err)
	require.Zero(f.t, info.Messages, queue)
}

// traffic publishes numbered messages to a queue, and consumes them, until stop is called.
type traffic struct {
	t         *testing.T
	queue     string
	client    *client.Client
	stopping  chan struct{}
	done      chan error
	published int
	received  []int // without redeliveries
}

func (f *moveFleet) traffic(queue string) *traffic {
	tr := &traffic{t: f.t, queue: queue, client: f.client, stopping: make(chan struct{}), done: make(chan error, 2)}
	published := make(chan int, 1)
	go func() { tr.done <- tr.publish(published) }()
	go func() { tr.done <- tr.consume(published) }()
	return tr
}

func (tr *traffic) publish(published chan<- int) (err error) {
	const inFlight = 64
	n := 0
	defer func() { published <- n }()
	producer, err := tr.client.NewProducer(tr.t.Context(), client.ProducerOptions{})
	if err != nil {
		return err
	}
	var pending []*client.Pending
	for ; ; n++ {
		select {
		case <-tr.stopping:
			return errors.Join(producer.Flush(tr.t.Context()), producer.Close())
		default:
		}
		if len(pending) == inFlight {
			if _, err := pending[0].Wait(tr.t.Context()); err != nil {
				return fmt.Errorf("publish %d: %w", n-inFlight, err)
			}
			pending = pending[1:]
		}
		pending = append(pending, producer.PublishAsync(tr.t.Context(), tr.queue, message(strconv.Itoa(n))))
	}
}

func (tr *traffic) consume(published <-chan int) error {
	co, err := tr.client.Consume(tr.t.Context(), tr.queue, client.ConsumerOptions{Prefetch: 20})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(tr.t.Context())
	defer cancel()
	go func() {
		n := <-published
		tr.published = n
		_, err := tr.client.Publish(ctx, tr.queue, message("end"))
		if err != nil {
			cancel()
		}
	}()
	for {
		d, err := co.Receive(ctx)
		if err != nil {
			return fmt.Errorf("receive after %d: %w", len(tr.received), err)
		}
		if string(d.Body) == "end" {
			return errors.Join(d.AckSync(ctx), co.Close())
		}
		n, err := strconv.Atoi(string(d.Body))
		if err != nil {
			return err
		}
		if n == len(tr.received) {
			tr.received = append(tr.received, n)
		} else if n > len(tr.received) {
			return fmt.Errorf("received %d instead of %d", n, len(tr.received))
		}
		_ = d.AckSync(ctx) // otherwise the message is delivered again
	}
}

// stop requires that all messages were received in order.
func (tr *traffic) stop() {
	tr.t.Helper()
	close(tr.stopping)
	require.NoError(tr.t, <-tr.done)
	require.NoError(tr.t, <-tr.done)
	require.Len(tr.t, tr.received, tr.published)
}

// A queue moves while a publisher and a consumer use it. Nothing is lost, duplicated or reordered, and delays,
// priorities, acknowledgements and message IDs move with the messages.
func TestMoveQueues(t *testing.T) {
	f := startMoveFleet(t)
	ctx := t.Context()
	f.fill("a.live", 0)
	require.NoError(t, f.create("a.prio", admin.CreateQueueOptions{Config: admin.QueueConfig{Priorities: true}}))
	require.NoError(t, f.create("a.ids", admin.CreateQueueOptions{
		Config: admin.QueueConfig{DedupWindow: time.Hour}, Subscriptions: []string{"default", "other"},
	}))
	for i, p := range []uint8{1, 9, 5} {
		_, err := f.client.Publish(ctx, "a.prio", client.Message{Body: []byte(strconv.Itoa(i)), Priority: &p})
		require.NoError(t, err)
	}
	for i := range 20 {
		m := client.Message{Body: []byte(strconv.Itoa(i)), MessageID: fmt.Sprint("id", i)}
		if i == 10 {
			m.Delay = time.Hour
		}
		_, err := f.client.Publish(ctx, "a.ids", m)
		require.NoError(t, err)
	}
	co, err := f.client.Consume(ctx, "a.ids", client.ConsumerOptions{Prefetch: 1})
	require.NoError(t, err)
	for range 5 {
		d, err := co.Receive(ctx)
		require.NoError(t, err)
		require.NoError(t, d.AckSync(ctx))
	}
	require.NoError(t, co.Close())

	tr := f.traffic("a.live")
	epoch := f.move("a.live", "a.prio", "a.ids")
	f.ended(epoch)
	for _, queue := range []string{"a.live", "a.prio", "a.ids"} {
		f.owner(queue, f.b)
	}
	tr.stop()

	receive := func(queue, sub string, n int) (bodies []string) {
		co, err := f.client.Consume(ctx, queue, client.ConsumerOptions{Subscription: sub})
		require.NoError(t, err)
		for range n {
			d, err := co.Receive(ctx)
			require.NoError(t, err)
			bodies = append(bodies, string(d.Body))
			require.NoError(t, d.AckSync(ctx))
		}
		require.NoError(t, co.Close())
		return bodies
	}
	require.Equal(t, []string{"1", "2", "0"}, receive("a.prio", "", 3))
	want := func(from int) (bodies []string) {
		for i := from; i < 20; i++ {
			if i != 10 {
				bodies = append(bodies, strconv.Itoa(i))
			}
		}
		return bodies
	}
	require.Equal(t, want(5), receive("a.ids", "default", 14))
	require.Equal(t, want(0), receive("a.ids", "other", 19))
	info, err := f.admin.GetQueue(ctx, "a.ids")
	require.NoError(t, err)
	require.Equal(t, uint64(1), info.Messages, "the delayed message")
	_, err = f.client.Publish(ctx, "a.ids", client.Message{Body: []byte("x"), MessageID: "id3"})
	require.NoError(t, err)
	info, err = f.admin.GetQueue(ctx, "a.ids")
	require.NoError(t, err)
	require.Equal(t, uint64(1), info.Messages, "a duplicate")

	list, err := f.mover().ListMoves(ctx, &pb.ListMovesRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetMoves(), 1)
	require.Equal(t, pb.MovePhase_MOVE_PHASE_DONE, list.GetMoves()[0].GetPhase())
	require.Positive(t, list.GetMoves()[0].GetPause().AsDuration())
}

// A move continues after a restart of the source or the target in each phase.
func TestMoveContinuesAfterRestart(t *testing.T) {
	f := startMoveFleet(t)
	const messages = 5
	for _, step := range []string{
		"begin", "copy", "fence", "messages", "state", "compare", "take", "finish", "drop", "forget",
	} {
		for _, pair := range []string{"a", "b"} {
			queue := "a." + step + "." + pair
			f.fill(queue, messages)
			reached, release := f.steps.stopAt(step)
			epoch := f.move(queue)
			<-reached
			if pair == "a" {
				f.a = f.restart(f.a)
			} else {
				f.b = f.restart(f.b)
			}
			release()
			f.ended(epoch)
			f.drain(queue, messages)
			if pair == "b" { // the source may have responded too late
				f.owner(queue, f.b)
			}
		}
	}
}

// A canceled move leaves the queue at the source, before and after the fence.
func TestCancelMove(t *testing.T) {
	f := startMoveFleet(t)
	for _, step := range []string{"begin", "copy", "fence", "messages", "take"} {
		queue := "a." + step
		f.fill(queue, 0)
		tr := f.traffic(queue)
		reached, release := f.steps.stopAt(step)
		epoch := f.move(queue)
		<-reached
		_, err := f.mover().CancelMove(t.Context(), &pb.CancelMoveRequest{Epoch: epoch})
		require.NoError(t, err)
		release()
		f.ended(epoch)
		f.owner(queue, f.a)
		tr.stop()
		_, err = f.mover().CancelMove(t.Context(), &pb.CancelMoveRequest{Epoch: epoch})
		require.Error(t, err)
	}
	list, err := f.mover().ListMoves(t.Context(), &pb.ListMovesRequest{})
	require.NoError(t, err)
	for _, m := range list.GetMoves() {
		require.Equal(t, pb.MovePhase_MOVE_PHASE_NOT_MOVED, m.GetPhase())
		require.NotEmpty(t, m.GetError())
		require.Equal(t, list.GetMoves()[0].GetError(), m.GetError(), "the same reason, although a later step has failed")
	}
}

// If a step fails permanently, the move is canceled. The steps after a lost intent write it again.
func TestFailedMove(t *testing.T) {
	f := startMoveFleet(t)
	for _, step := range []string{"copy", "state", "take"} {
		queue := "a." + step
		f.fill(queue, 1)
		f.steps.fail(fmt.Errorf("%w: test", apierror.ErrFleetState))
		reached, release := f.steps.stopAt(step)
		epoch := f.move(queue)
		<-reached
		release()
		f.ended(epoch)
		if step == "copy" { // the attempt failed, and was repeated
			f.owner(queue, f.b)
		} else {
			f.owner(queue, f.a)
		}
		f.drain(queue, 1)
		f.steps.fail(nil)
	}
	f.fill("a.q", 1)
	reached, release := f.steps.stopAt("copy")
	epoch := f.move("a.q")
	<-reached
	_, err := f.records.Delete(t.Context(), fleet.DefaultPrefix+"/moves/", clientv3.WithPrefix())
	require.NoError(t, err)
	release()
	f.ended(epoch)
	f.owner("a.q", f.b)
	f.drain("a.q", 1)
}

// Pairs authenticate each other with fleet.token-file.
func TestMoveWithToken(t *testing.T) {
	f := &moveFleet{testFleet: &testFleet{t: t}}
	etcd := startRealEtcd(t)
	token := func(name string) string {
		file := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(file, []byte("a-shared-secret-of-all-pairs-"+name), 0o600))
		return file
	}
	run := func(pair, file string) *testNode {
		c := inFleet(settings(t, pair), pair, etcd.Endpoints())
		c.Fleet.TokenFile = file
		c.Access.Mode, c.Access.Operators = "deny", []string{"root"}
		o := node.Options{Environment: node.Environment{Authenticators: []auth.Authenticator{
			func(ctx context.Context) (*access.Identity, error) {
				if len(metadata.ValueFromIncomingContext(ctx, mover.TokenKey)) > 0 {
					return nil, nil //nolint:nilnil // a node of another pair
				}
				return &access.Identity{Principal: "root", Method: access.MethodToken}, nil
			},
		}}}
		n := startIn(t, c, o)
		n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
		n.waitLive(pair)
		return n
	}
	f.a, f.b = run("a", token("1")), run("b", token("2"))
	require.Eventually(t, func() bool {
		_, err := pb.NewFleetServiceClient(f.a.conn).PutPlacementRule(t.Context(), &pb.PutPlacementRuleRequest{
			Rule: &pb.PlacementRule{Pattern: "*", Pair: "a"},
		})
		return err == nil
	}, testTimeout, 5*time.Millisecond)
	f.a.createQueue("q")
	epoch := f.move("q")
	require.Eventually(t, func() bool {
		list, err := f.mover().ListMoves(t.Context(), &pb.ListMovesRequest{})
		return err == nil && list.GetMoves()[0].GetError() != ""
	}, testTimeout, 5*time.Millisecond, "the source refuses the secret")
	_, err := f.mover().CancelMove(t.Context(), &pb.CancelMoveRequest{Epoch: epoch})
	require.NoError(t, err)
	f.ended(epoch)
	require.NoError(t, get(f.a, "q"))

	f.b.stop()
	c := f.b.config
	c.Fleet.TokenFile = f.a.config.Fleet.TokenFile
	c.Access.Mode = "open"
	f.b = start(t, c)
	f.b.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	epoch = f.move("q")
	f.ended(epoch)
	require.NoError(t, get(f.b, "q"))
}

// Requests that cannot be executed are refused.
func TestRefusedMoves(t *testing.T) {
	f := startMoveFleet(t)
	f.fill("a.q", 1)
	f.fill("b.q", 1)
	reached, release := f.steps.stopAt("messages")
	epoch := f.move("a.q")
	<-reached
	for _, req := range []*pb.MoveQueuesRequest{
		{}, {Queues: []string{"a.q"}}, {Queues: []string{"b.q"}}, {Queues: []string{"none"}}, {Group: "none"},
	} {
		_, err := f.mover().MoveQueues(t.Context(), req)
		require.Error(t, err, req)
	}
	_, err := pb.NewFleetServiceClient(f.a.conn).LeaveFleet(t.Context(), &pb.LeaveFleetRequest{})
	require.Error(t, err)
	require.Equal(t, "b", notOwner(get(f.a, "a.q")).GetPair(), "the queue is fenced")
	require.Nil(t, notOwner(get(f.b, "a.q")), "neither pair serves the queue")
	release()
	f.ended(epoch)
	f.drain("a.q", 1)
	f.owner("a.q", f.b)
}

// A move continues after a switchover of the source or the target in each phase.
//
// The test uses real sockets, because the directory requires a real etcd.
func TestMoveContinuesAfterSwitchover(t *testing.T) {
	etcd := startRealEtcd(t)
	f := &moveFleet{testFleet: &testFleet{t: t}}
	var err error
	pairs := map[string][]*testNode{}
	for _, pair := range []string{"a", "b"} {
		for _, name := range []string{pair + "1", pair + "2"} {
			c := inFleet(settingsOfPair(t, name, etcd), pair, nil)
			c.Coordinator.Etcd.Prefix = "/test/pair-" + pair
			o := node.Options{}
			if pair == "b" {
				o.Environment.MoveStep = f.steps.step
			}
			n := startIn(t, c, o)
			if len(pairs[pair]) == 0 {
				n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
			}
			pairs[pair] = append(pairs[pair], n)
		}
		pairs[pair][0].waitFor(pb.Role_ROLE_ACTIVE)
	}
	f.client, err = client.OpenWith(t.Context(), client.Options{
		Addresses: []string{pairs["a"][0].ready.Address, pairs["a"][1].ready.Address},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.client.Close()) })
	f.admin = admin.New(f.client)
	active := func(pair string) *testNode {
		var found *testNode
		require.Eventually(t, func() bool {
			for _, n := range pairs[pair] {
				if found = n; n.role() == pb.Role_ROLE_ACTIVE {
					return true
				}
			}
			return false
		}, testTimeout, 5*time.Millisecond)
		return found
	}
	_, err = pb.NewFleetServiceClient(active("a").conn).PutPlacementRule(t.Context(), &pb.PutPlacementRuleRequest{
		Rule: &pb.PlacementRule{Pattern: "a.*", Pair: "a"},
	})
	require.NoError(t, err)
	const messages = 5
	for _, step := range []string{"copy", "fence", "messages", "compare", "finish", "drop"} {
		for _, pair := range []string{"a", "b"} {
			queue := "a." + step + "." + pair
			f.fill(queue, messages)
			reached, release := f.steps.stopAt(step)
			f.b = active("b")
			epoch := f.move(queue)
			<-reached
			_, err := active(pair).admin.Switchover(t.Context(), &pb.SwitchoverRequest{})
			require.NoError(t, err)
			release()
			f.b = active("b")
			f.ended(epoch)
			f.drain(queue, messages)
			if pair == "b" { // the source may have responded too late
				require.NoError(t, get(f.b, queue))
			}
		}
	}
}

// A queue with more messages than one response contains moves, with gaps between its messages.
func TestMoveManyMessages(t *testing.T) {
	f := startMoveFleet(t)
	ctx := t.Context()
	f.fill("a.many", 0)
	const batches, size = 20, 500
	body := strings.Repeat("x", 1000)
	for range batches {
		messages := make([]*pb.Message, size)
		for i := range messages {
			messages[i] = &pb.Message{Body: []byte(body)}
		}
		_, err := f.a.queues.Publish(ctx, &pb.PublishRequest{Queue: "a.many", Messages: messages})
		require.NoError(t, err)
	}
	var acks []*pb.SequenceRange
	for first := uint64(1); first < batches*size; first += 97 {
		acks = append(acks, &pb.SequenceRange{First: first, Last: min(first+40, batches*size)})
	}
	acks = append(acks, &pb.SequenceRange{First: 3000, Last: 7000})
	_, err := f.a.queues.Commit(ctx, &pb.CommitRequest{Operations: []*pb.Operation{{
		Kind: &pb.Operation_Ack{Ack: &pb.AckOperation{Queue: "a.many", Ranges: acks}},
	}}})
	require.NoError(t, err)
	before, err := f.admin.GetQueue(ctx, "a.many")
	require.NoError(t, err)
	f.ended(f.move("a.many"))
	f.owner("a.many", f.b)
	after, err := f.admin.GetQueue(ctx, "a.many")
	require.NoError(t, err)
	require.Equal(t, before.Messages, after.Messages)
	require.Equal(t, before.NextSequence, after.NextSequence)
	list, err := f.mover().ListMoves(ctx, &pb.ListMovesRequest{})
	require.NoError(t, err)
	require.Greater(t, list.GetMoves()[0].GetCopiedBytes(), before.Messages*1000)
	require.Zero(t, list.GetMoves()[0].GetRemainingBytes())
	t.Logf("pause %v", list.GetMoves()[0].GetPause().AsDuration())
}
