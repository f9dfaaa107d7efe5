// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/proto/codec"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// fakeDirectory is a directory in which other pairs own some queues. New names are assigned to this pair.
type fakeDirectory struct {
	mu      sync.Mutex        // guards the fields below
	owners  map[string]string // pair by queue
	down    bool              // etcd does not respond; the owners are known
	epoch   uint64
	groups  map[string]string // requested placement group by queue
	deleted map[string]uint64 // epoch by queue

	partitions map[string]int // number of partitions by queue
}

func (d *fakeDirectory) own(pair string, queues ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range queues {
		if d.owners[q] = pair; pair == "" {
			delete(d.owners, q)
		}
	}
}

func (d *fakeDirectory) setDown(down bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = down
}

func (d *fakeDirectory) NotFound(queue string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch pair := d.owners[queue]; {
	case pair != "":
		return &apierror.NotOwnerError{Queue: queue, Pair: pair, Addresses: []string{pair + ":1"}, Epoch: 1}
	case d.down:
		return fleet.ErrUnavailable
	}
	return txn.ErrQueueNotFound
}

func (d *fakeDirectory) Create(
	_ context.Context, _ *replication.Primary, queue, group string, commit func(epoch uint64) error,
) error {
	if err := d.NotFound(queue); !errors.Is(err, txn.ErrQueueNotFound) {
		return err
	}
	d.mu.Lock()
	d.epoch++
	epoch := d.epoch
	d.groups[queue] = group
	d.mu.Unlock()
	return commit(epoch)
}

func (d *fakeDirectory) Partitions(queue string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.partitions[queue]
}

func (d *fakeDirectory) Deleted(queue string, epoch uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.deleted[queue] = epoch
}

// memberNode is the queue service of a pair in a fleet.
type memberNode struct {
	t       *testing.T
	dir     *fakeDirectory
	store   *store.Store
	service *Service
	queues  pb.QueueServiceClient
	plans   pb.ScheduleServiceClient
}

func startMember(t *testing.T) *memberNode { return startMemberOf(t, failover.Status{}) }

func startMemberOf(t *testing.T, pair failover.Status) *memberNode {
	t.Helper()
	s, err := store.Open(store.Options{FS: memfs.New(), Dir: "/data", MemoryBudget: store.MinMemoryBudget})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.JoinPair(uuid.New()))
	ready := make(chan struct{})
	primary, err := replication.StartPrimary(replication.PrimaryOptions{
		Store: s, Term: 1, Config: replication.PrimaryConfig{Config: 1, Serve: true},
		Events: func(e replication.Event) {
			if _, is := e.(replication.ActiveReady); is {
				close(ready)
			}
		},
	})
	require.NoError(t, err)
	<-ready
	serving := session.NewCurrent(func() *apierror.NotActiveError { return &apierror.NotActiveError{} },
		func() failover.Status { return pair }, func() <-chan struct{} { return nil })
	current := session.NewSession(primary, s, session.Options{Limits: config.Default().Limits}, zap.NewNop())
	serving.Set(current)
	t.Cleanup(func() { current.End(errors.New("the test has ended")) })
	n := &memberNode{t: t, store: s, service: New(serving, s, config.Default().Limits, new(access.Rules))}
	n.dir = &fakeDirectory{
		owners: map[string]string{}, epoch: 10, groups: map[string]string{}, deleted: map[string]uint64{},
	}
	n.service.fleet = n.dir
	n.commit(func(b *txn.Builder) {
		b.Fleet(txn.FleetChange{Action: txn.FleetJoin, ID: uuid.New(), Pair: "a", Epoch: 10})
	})
	n.dial()
	return n
}

func (n *memberNode) dial() {
	n.t.Helper()
	l := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.ForceServerCodecV2(codec.New()))
	pb.RegisterQueueServiceServer(server, n.service)
	pb.RegisterScheduleServiceServer(server, NewSchedules(n.service, zap.NewNop()))
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	n.t.Cleanup(func() {
		server.Stop()
		require.NoError(n.t, <-served)
	})
	conn, err := grpc.NewClient("passthrough:///node", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	require.NoError(n.t, err)
	n.t.Cleanup(func() { require.NoError(n.t, conn.Close()) })
	n.queues, n.plans = pb.NewQueueServiceClient(conn), pb.NewScheduleServiceClient(conn)
}

func (n *memberNode) commit(fill func(b *txn.Builder)) {
	n.t.Helper()
	s, err := n.service.serving.Session()
	require.NoError(n.t, err)
	var b txn.Builder
	b.Begin(nil, now(), nil)
	fill(&b)
	payload, err := b.Finish()
	require.NoError(n.t, err)
	result, err := s.Primary.Commit(n.t.Context(), payload)
	require.NoError(n.t, err)
	require.NoError(n.t, result.Err())
}

func (n *memberNode) create(name string) {
	n.t.Helper()
	_, err := n.queues.CreateQueue(n.t.Context(), &pb.CreateQueueRequest{Name: name})
	require.NoError(n.t, err)
}

func (n *memberNode) remove(name string) {
	n.t.Helper()
	_, err := n.queues.DeleteQueue(n.t.Context(), &pb.DeleteQueueRequest{Name: name})
	require.NoError(n.t, err)
}

// as returns the identity of a request.
func as(sequence uint64, retry bool) *pb.Producer {
	return &pb.Producer{Id: "p", Epoch: 1, Sequence: sequence, Retry: retry}
}

// outcome is the part of an error on which clients depend.
type outcome struct {
	reason, pair string
	settled      bool
}

func outcomeOf(t *testing.T, err error) (o outcome) {
	t.Helper()
	if err == nil {
		return o
	}
	response := apierror.ToRequestError(apierror.FromStatus(err))
	o.reason = response.GetReason()
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case interface{ GetMetadata() map[string]string }:
			o.settled = d.GetMetadata()["settled"] == "true"
		case *pb.NotOwner:
			o.pair = d.GetPair()
		}
	}
	return o
}

func body(text string) []*pb.Message { return []*pb.Message{{Body: []byte(text)}} }

// Queues of one other pair are reported with their owner. Queues of different pairs are an error.
func TestOwnersOfSeveralQueues(t *testing.T) {
	n := startMember(t)
	n.create("local")
	n.dir.own("b", "b1", "b2")
	n.dir.own("c", "c1")
	check := func(want error, queues ...string) {
		t.Helper()
		err := n.service.missingOf(queues...)
		if want == nil {
			require.NoError(t, err, queues)
			return
		}
		require.ErrorIs(t, err, want, queues)
		require.True(t, isMissing(err), queues)
	}
	check(nil, "local", "")
	check(apierror.ErrNotOwner, "b1")
	check(apierror.ErrNotOwner, "b1", "b2", "b1")
	check(apierror.ErrCrossPair, "b1", "c1")
	check(apierror.ErrCrossPair, "local", "b1")
	check(apierror.ErrCrossPair, "b1", "local")
	check(txn.ErrQueueNotFound, "none")
	check(txn.ErrQueueNotFound, "local", "none")
	check(txn.ErrQueueNotFound, "b1", "none")
	n.dir.setDown(true)
	check(fleet.ErrUnavailable, "none")
	check(fleet.ErrUnavailable, "local", "none")
	check(fleet.ErrUnavailable, "b1", "none")
	check(apierror.ErrCrossPair, "b1", "none", "local")
	check(apierror.ErrNotOwner, "b1", "b2")
}

// requests are the requests for a queue by method.
func (n *memberNode) requests(queue string) map[string]func(ctx context.Context) error {
	q := n.queues
	ops := []*pb.Operation{
		{Kind: &pb.Operation_Publish{Publish: &pb.PublishOperation{Queue: queue, Messages: body("x")}}},
	}
	call := func(_ any, err error) error { return err }
	first := []*pb.SequenceRange{{First: 1, Last: 1}}
	return map[string]func(ctx context.Context) error{
		"Publish": func(ctx context.Context) error {
			return call(q.Publish(ctx, &pb.PublishRequest{Queue: queue, Messages: body("x")}))
		},
		"Commit": func(ctx context.Context) error { return call(q.Commit(ctx, &pb.CommitRequest{Operations: ops})) },
		"Prepare": func(ctx context.Context) error {
			return call(q.Prepare(ctx, &pb.PrepareRequest{Xid: "x", Operations: ops}))
		},
		"GetQueue": func(ctx context.Context) error {
			return call(q.GetQueue(ctx, &pb.GetQueueRequest{Name: queue}))
		},
		"AlterQueue": func(ctx context.Context) error {
			return call(q.AlterQueue(ctx, &pb.AlterQueueRequest{Name: queue, Config: &pb.QueueConfig{}}))
		},
		"DeleteQueue": func(ctx context.Context) error {
			return call(q.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: queue}))
		},
		"PurgeQueue": func(ctx context.Context) error {
			return call(q.PurgeQueue(ctx, &pb.PurgeQueueRequest{Name: queue}))
		},
		"GetHistory": func(ctx context.Context) error {
			return call(q.GetHistory(ctx, &pb.GetHistoryRequest{Queue: queue}))
		},
		"CreateSubscription": func(ctx context.Context) error {
			return call(q.CreateSubscription(ctx, &pb.CreateSubscriptionRequest{Queue: queue, Name: "s", StartSequence: 1}))
		},
		"AlterSubscription": func(ctx context.Context) error {
			return call(q.AlterSubscription(ctx, &pb.AlterSubscriptionRequest{
				Queue: queue, Name: "s", UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"filter"}},
			}))
		},
		"DeleteSubscription": func(ctx context.Context) error {
			return call(q.DeleteSubscription(ctx, &pb.DeleteSubscriptionRequest{Queue: queue, Name: "s"}))
		},
		"SeekSubscription": func(ctx context.Context) error {
			return call(q.SeekSubscription(ctx, &pb.SeekSubscriptionRequest{
				Queue: queue, To: &pb.SeekSubscriptionRequest_Sequence{Sequence: 1},
			}))
		},
		"PauseQueue": func(ctx context.Context) error {
			return call(q.PauseQueue(ctx, &pb.PauseQueueRequest{Queue: queue}))
		},
		"ResumeQueue": func(ctx context.Context) error {
			return call(q.ResumeQueue(ctx, &pb.ResumeQueueRequest{Queue: queue}))
		},
		"SetForwards": func(ctx context.Context) error {
			return call(q.SetForwards(ctx, &pb.SetForwardsRequest{Queue: queue}))
		},
		"ReplayDeadLetters": func(ctx context.Context) error {
			return call(q.ReplayDeadLetters(ctx, &pb.ReplayDeadLettersRequest{Queue: queue}))
		},
		"MoveMessages": func(ctx context.Context) error {
			return call(q.MoveMessages(ctx, &pb.MoveMessagesRequest{Queue: queue, Sequences: first}))
		},
		"RemoveMessages": func(ctx context.Context) error {
			return call(q.RemoveMessages(ctx, &pb.RemoveMessagesRequest{Queue: queue, Sequences: first}))
		},
		"Browse": func(ctx context.Context) error {
			stream, err := q.Browse(ctx, &pb.BrowseRequest{Queue: queue})
			if err != nil {
				return err
			}
			return call(stream.Recv())
		},
		"Consume": func(ctx context.Context) error {
			stream, err := q.Consume(ctx)
			if err != nil {
				return err
			}
			if err := stream.Send(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: queue}}); err != nil {
				return err
			}
			return call(stream.Recv())
		},
	}
}

// Each request for a queue that the pair does not have returns the owner.
func TestEachRequestReturnsTheOwner(t *testing.T) {
	n := startMember(t)
	n.dir.own("b", "other")
	covered := slices.Collect(maps.Keys(n.requests("")))
	// PublishStream and CreateQueue have their own tests. The others have no queue, or only that of a policy.
	covered = append(covered, "PublishStream", "CreateQueue", "ListQueues", "PutPolicy", "DeletePolicy", "ListPolicies",
		"CommitPrepared", "RollbackPrepared", "ListPrepared")
	var methods []string
	for _, m := range pb.QueueService_ServiceDesc.Methods {
		methods = append(methods, m.MethodName)
	}
	for _, m := range pb.QueueService_ServiceDesc.Streams {
		methods = append(methods, m.StreamName)
	}
	require.ElementsMatch(t, methods, covered, "a method has no case")
	for name, request := range n.requests("other") {
		require.Equal(t, outcome{reason: "NOT_OWNER", pair: "b"}, outcomeOf(t, request(t.Context())), name)
	}
	for name, request := range n.requests("none") {
		require.Equal(t, outcome{reason: "QUEUE_NOT_FOUND"}, outcomeOf(t, request(t.Context())), name)
	}
	n.dir.partitions = map[string]int{"far": 4}
	n.create("near#1/4")
	for _, queue := range []string{"near", "far"} {
		for name, request := range n.requests(queue) {
			err := request(t.Context())
			require.Equal(t, outcome{reason: "QUEUE_PARTITIONED"}, outcomeOf(t, err), name)
			details := status.Convert(err).Details()
			require.Equal(t, uint32(4), details[len(details)-1].(*pb.QueuePartitioned).GetCount(), name)
		}
	}
	n.dir.setDown(true)
	for name, request := range n.requests("none") {
		require.Equal(t, outcome{reason: "DIRECTORY_UNAVAILABLE"}, outcomeOf(t, request(t.Context())), name)
	}
}

// A request with a second queue of another pair is refused.
func TestQueuesOfDifferentPairs(t *testing.T) {
	n := startMember(t)
	n.create("local")
	n.dir.own("b", "b1", "b2")
	n.dir.own("c", "c1")
	ctx, q := t.Context(), n.queues
	publish := func(queue string) *pb.Operation {
		return &pb.Operation{Kind: &pb.Operation_Publish{
			Publish: &pb.PublishOperation{Queue: queue, Messages: body("x")},
		}}
	}
	commit := func(queues ...string) error {
		req := &pb.CommitRequest{}
		for _, name := range queues {
			req.Operations = append(req.Operations, publish(name))
		}
		_, err := q.Commit(ctx, req)
		return err
	}
	alter := func(queue, deadLetter string) error {
		_, err := q.AlterQueue(ctx, &pb.AlterQueueRequest{Name: queue, Config: &pb.QueueConfig{
			DeadLetter: deadLetter,
		}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"dead_letter"}}})
		return err
	}
	forward := func(queue string, to ...string) error {
		req := &pb.SetForwardsRequest{Queue: queue}
		for _, name := range to {
			req.Forwards = append(req.Forwards, &pb.Forward{To: name})
		}
		_, err := q.SetForwards(ctx, req)
		return err
	}
	_, policy := q.PutPolicy(ctx, &pb.PutPolicyRequest{Policy: &pb.QueuePolicy{
		Pattern: "*", Defaults: &pb.QueueConfig{DeadLetter: "b1"},
	}})
	_, replay := q.ReplayDeadLetters(ctx, &pb.ReplayDeadLettersRequest{Queue: "local", To: "b1"})
	_, create := q.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "new", Config: &pb.QueueConfig{DeadLetter: "b1"}})
	for name, err := range map[string]error{
		"commit": commit("local", "b1"), "commit, other pairs": commit("b1", "c1"), "dead letter": alter("local", "b1"),
		"dead letter, other pairs": alter("b1", "c1"), "forward": forward("local", "b1"),
		"forward, other pairs": forward("b1", "b2", "c1"), "policy": policy, "replay": replay, "create": create,
	} {
		require.Equal(t, outcome{reason: "CROSS_PAIR"}, outcomeOf(t, err), name)
	}
	for name, err := range map[string]error{
		"commit": commit("b1", "b2"), "dead letter": alter("b1", "b2"), "forward": forward("b1", "b2"),
	} {
		require.Equal(t, outcome{reason: "NOT_OWNER", pair: "b"}, outcomeOf(t, err), name)
	}
	require.NoError(t, commit("local"))
}

// A dead letter is skipped only if this pair does not have its original queue. If the owner of this queue is unknown,
// the call fails.
func TestReplayWithUnknownOwner(t *testing.T) {
	n := startMember(t)
	n.create("q")
	n.create("dead")
	queue, sub, err := n.service.findSub("q", "")
	require.NoError(t, err)
	dead, err := n.service.find("dead")
	require.NoError(t, err)
	const batch = maxReplayMessages
	messages := make([]*pb.Message, batch+1)
	for i := range messages {
		messages[i] = &pb.Message{Body: []byte("x")}
	}
	_, err = n.queues.Publish(t.Context(), &pb.PublishRequest{Queue: "q", Messages: messages})
	require.NoError(t, err)
	n.commit(func(b *txn.Builder) {
		b.BeginMove(queue, sub, dead)
		for i := range uint64(batch + 1) {
			from := txn.DeadLetter{Queue: "q", Subscription: "default", Sequence: i + 1, Reason: txn.DeadRejected}
			if i == batch {
				from.Queue = "other"
			}
			rec, err := txn.AppendMessage(nil, 1, &txn.Attributes{DeadLetter: &from}, nil, []byte("x"))
			require.NoError(t, err)
			b.Move(i+1, rec)
		}
		b.EndMove()
	})
	replay := func() (*pb.ReplayDeadLettersResponse, error) {
		return n.queues.ReplayDeadLetters(t.Context(), &pb.ReplayDeadLettersRequest{Queue: "dead"})
	}
	n.dir.setDown(true)
	_, err = replay()
	require.Equal(t, outcome{reason: "OUTCOME_UNKNOWN"}, outcomeOf(t, err))
	got, err := n.queues.GetQueue(t.Context(), &pb.GetQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.Equal(t, uint64(batch), got.GetQueue().GetMessages(), "the first batch")
	_, err = replay()
	require.Equal(t, outcome{reason: "DIRECTORY_UNAVAILABLE"}, outcomeOf(t, err))

	for _, change := range []func(){
		func() { n.dir.own("b", "other") }, func() { n.dir.own("", "other"); n.dir.setDown(false) },
	} {
		change()
		resp, err := replay()
		require.NoError(t, err)
		require.Equal(t, []uint64{0, 1}, []uint64{resp.GetMoved(), resp.GetSkipped()})
	}
	n.create("other")
	resp, err := replay()
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 0}, []uint64{resp.GetMoved(), resp.GetSkipped()})
}

// The outcome of a retry is decided in the log: an earlier attempt has its result, and otherwise the request is
// refused permanently, even if the queue is created later.
func TestRetryInFleet(t *testing.T) {
	n := startMember(t)
	publish := func(sequence uint64, retry bool) error {
		_, err := n.queues.Publish(t.Context(), &pb.PublishRequest{
			Queue: "q", Messages: body("x"), Producer: as(sequence, retry),
		})
		return err
	}
	n.create("q")
	require.NoError(t, publish(1, false))
	n.remove("q")
	n.dir.own("b", "q")
	refused := outcome{reason: "NOT_OWNER", pair: "b", settled: true}
	require.Equal(t, outcome{reason: "NOT_OWNER", pair: "b"}, outcomeOf(t, publish(2, false)))
	for range 2 {
		require.NoError(t, publish(1, true), "the result of the first attempt")
		require.Equal(t, refused, outcomeOf(t, publish(2, true)))
	}
	n.dir.own("", "q")
	n.dir.setDown(true)
	unknown := outcome{reason: "DIRECTORY_UNAVAILABLE", settled: true}
	require.Equal(t, unknown, outcomeOf(t, publish(2, true)))
	require.Equal(t, unknown, outcomeOf(t, publish(3, true)))
	n.dir.setDown(false)
	require.Equal(t, outcome{reason: "QUEUE_NOT_FOUND", settled: true}, outcomeOf(t, publish(3, true)))
	n.create("q")
	require.Equal(t, unknown, outcomeOf(t, publish(3, true)), "a refused request was applied later")
	require.NoError(t, publish(4, true))
}

// A retry is refused in the log while another pair owns the queue, and the response is lost. When the queue has moved
// to this pair, the next retry is not rejected because of a missing queue: the client repeats the request.
func TestQueueArrivesAfterRefusal(t *testing.T) {
	n := startMember(t)
	n.dir.own("b", "q", "p")
	ctx, q := t.Context(), n.queues
	requests := map[string]func(p *pb.Producer) error{
		"publish": func(p *pb.Producer) error {
			_, err := q.Publish(ctx, &pb.PublishRequest{Queue: "q", Messages: body("x"), Producer: p})
			return err
		},
		"commit": func(p *pb.Producer) error {
			op := func(queue string) *pb.Operation {
				return &pb.Operation{Kind: &pb.Operation_Publish{
					Publish: &pb.PublishOperation{Queue: queue, Messages: body("x")},
				}}
			}
			_, err := q.Commit(ctx, &pb.CommitRequest{Producer: p, Operations: []*pb.Operation{op("q"), op("p")}})
			return err
		},
		"purge": func(p *pb.Producer) error {
			_, err := q.PurgeQueue(ctx, &pb.PurgeQueueRequest{Name: "q", Producer: p})
			return err
		},
		"schedule": func(p *pb.Producer) error {
			_, err := n.plans.PutSchedule(ctx, &pb.PutScheduleRequest{
				Schedule: &pb.Schedule{Name: "s", Queue: "q", Cron: "@daily"}, Producer: p,
			})
			return err
		},
	}
	identity := func(name string, sequence uint64) *pb.Producer {
		return &pb.Producer{Id: name, Epoch: 1, Sequence: sequence, Retry: true}
	}
	for name, request := range requests {
		require.Equal(t, outcome{reason: "NOT_OWNER", pair: "b", settled: true}, outcomeOf(t, request(identity(name, 1))))
	}
	stream := n.stream()
	retry := func(r *pb.PublishStreamRequest) { r.Publish.Producer.Retry = true }
	require.Equal(t, "NOT_OWNER", stream.publish("q", retry).GetReason())
	n.dir.own("", "q", "p")
	n.create("q")
	n.create("p")
	for name, request := range requests {
		require.Equal(t, outcome{reason: "DIRECTORY_UNAVAILABLE", settled: true}, outcomeOf(t, request(identity(name, 1))),
			name)
		require.NoError(t, request(identity(name, 2)), name)
	}

	stream = n.stream()
	again := stream.publish("q", retry)
	require.Equal(t, "DIRECTORY_UNAVAILABLE", again.GetReason())
	require.True(t, again.GetSettled())
	require.Equal(t, "DIRECTORY_UNAVAILABLE", stream.publish("q", nil).GetReason(), "it follows the refused request")
	require.Nil(t, stream.publish("q", func(r *pb.PublishStreamRequest) { r.Resumes = true }))
}

// Retries of other requests are also decided in the log.
func TestRetriesOfChanges(t *testing.T) {
	n := startMember(t)
	n.dir.own("b", "q", "dead")
	n.create("local")
	ctx, q := t.Context(), n.queues
	sequence := uint64(0)
	next := func() *pb.Producer {
		sequence++
		return as(sequence, true)
	}
	_, deleted := q.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: "q", Producer: next()})
	_, seek := q.SeekSubscription(ctx, &pb.SeekSubscriptionRequest{
		Queue: "q", To: &pb.SeekSubscriptionRequest_Sequence{Sequence: 1}, Producer: next(),
	})
	_, commit := q.Commit(ctx, &pb.CommitRequest{Producer: next(), Operations: []*pb.Operation{{
		Kind: &pb.Operation_Publish{Publish: &pb.PublishOperation{Queue: "q", Messages: body("x")}},
	}}})
	_, schedule := n.plans.PutSchedule(ctx, &pb.PutScheduleRequest{
		Schedule: &pb.Schedule{Name: "s", Queue: "q", Cron: "@daily"}, Producer: next(),
	})
	_, create := q.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "q", IfNotExists: true, Producer: next()})
	for name, err := range map[string]error{
		"delete": deleted, "seek": seek, "commit": commit, "schedule": schedule, "create": create,
	} {
		require.Equal(t, outcome{reason: "NOT_OWNER", pair: "b", settled: true}, outcomeOf(t, err), name)
	}
	_, again := q.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "q", IfNotExists: true, Producer: as(sequence, true)})
	require.Equal(t, outcome{reason: "NOT_OWNER", pair: "b", settled: true}, outcomeOf(t, again))
	_, alter := q.AlterQueue(ctx, &pb.AlterQueueRequest{Name: "local", Config: &pb.QueueConfig{
		DeadLetter: "dead",
	}, UpdateMask: &fieldmaskpb.FieldMask{Paths: []string{"dead_letter"}}, Producer: next()})
	require.Equal(t, outcome{reason: "CROSS_PAIR", settled: true}, outcomeOf(t, alter))
}

// The retry of a creation is refused in the log while another pair owns the name. When the owner has deleted its queue,
// the next retry is not rejected because of a missing queue: the client repeats the request.
func TestNameIsReleasedAfterRefusal(t *testing.T) {
	n := startMember(t)
	n.dir.own("b", "q")
	create := func(sequence uint64) error {
		_, err := n.queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q", Producer: as(sequence, true)})
		return err
	}
	require.Equal(t, outcome{reason: "NOT_OWNER", pair: "b", settled: true}, outcomeOf(t, create(1)))
	n.dir.own("", "q")
	require.Equal(t, outcome{reason: "DIRECTORY_UNAVAILABLE", settled: true}, outcomeOf(t, create(1)))
	require.NoError(t, create(2))
}

// A queue is created under the epoch that the directory has assigned.
func TestCreateInFleet(t *testing.T) {
	n := startMember(t)
	n.dir.own("b", "other")
	ctx, q := t.Context(), n.queues
	_, err := q.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "orders{7}", PlacementGroup: "g", Producer: as(1, false)})
	require.NoError(t, err)
	require.Equal(t, "g", n.dir.groups["orders{7}"])
	epoch, exists := query.OwnershipEpoch(n.store, "orders{7}")
	require.True(t, exists)
	require.EqualValues(t, 11, epoch)

	resp, err := q.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "orders{7}", IfNotExists: true})
	require.NoError(t, err)
	require.False(t, resp.GetCreated())
	_, err = q.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "orders{7}"})
	require.Equal(t, outcome{reason: "QUEUE_EXISTS"}, outcomeOf(t, err))
	require.EqualValues(t, 11, n.dir.epoch, "an existing queue was assigned again")
	for _, ifNotExists := range []bool{false, true} {
		_, err = q.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "other", IfNotExists: ifNotExists})
		require.Equal(t, outcome{reason: "NOT_OWNER", pair: "b"}, outcomeOf(t, err))
	}
	_, err = q.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "q", PlacementGroup: "{g}"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))

	n.remove("orders{7}")
	require.EqualValues(t, 11, n.dir.deleted["orders{7}"])
	n.dir.setDown(true)
	for _, retry := range []bool{false, true} {
		_, err = q.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "q", Producer: as(2, retry)})
		require.Equal(t, outcome{reason: "DIRECTORY_UNAVAILABLE"}, outcomeOf(t, err))
	}
	n.dir.setDown(false)
	for range 2 {
		resp, err = q.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "q", Producer: as(2, true)})
		require.NoError(t, err, "the sequence was not used while the directory was unavailable")
		require.True(t, resp.GetCreated())
	}
	_, err = q.CreateQueue(ctx, &pb.CreateQueueRequest{Name: "r", Config: &pb.QueueConfig{DeadLetter: "q"}})
	require.NoError(t, err)
}

// A node of an earlier release would refuse names with braces when it applies the log.
func TestBracesRequireFeature(t *testing.T) {
	old := failover.NodeInfo{ID: uuid.New(), Name: "old", Address: "old:1", Features: failover.FeatureAttributes}
	n := startMemberOf(t, failover.Status{Record: &failover.Record{Nodes: []failover.NodeInfo{old}}})
	n.service.fleet = nil
	n.commit(func(b *txn.Builder) { b.Fleet(txn.FleetChange{Action: txn.FleetLeave}) })
	n.create("plain")
	_, err := n.queues.CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "orders{7}"})
	require.Equal(t, outcome{reason: "FEATURE_MISSING"}, outcomeOf(t, err))
	_, exists := query.OwnershipEpoch(n.store, "orders{7}")
	require.False(t, exists)
}

type publishing struct {
	t      *testing.T
	stream pb.QueueService_PublishStreamClient
	next   uint64
}

func (n *memberNode) stream() *publishing {
	n.t.Helper()
	s, err := n.queues.PublishStream(n.t.Context())
	require.NoError(n.t, err)
	return &publishing{t: n.t, stream: s}
}

// publish sends a request, and returns the reason in the response; "" if it was committed.
func (p *publishing) publish(queue string, change func(r *pb.PublishStreamRequest)) *pb.RequestError {
	p.t.Helper()
	p.next++
	r := &pb.PublishStreamRequest{Correlation: p.next, Publish: &pb.PublishRequest{
		Queue: queue, Messages: body(fmt.Sprint(p.next)), Producer: as(p.next, false),
	}}
	if change != nil {
		change(r)
	}
	require.NoError(p.t, p.stream.Send(r))
	resp, err := p.stream.Recv()
	require.NoError(p.t, err)
	require.Equal(p.t, p.next, resp.GetCorrelation())
	return resp.GetError()
}

// After a refusal that concerns the owner, a stream refuses all later requests for the queue, even if the queue is
// created in the meantime, until the client continues.
func TestStreamRefusesLaterRequests(t *testing.T) {
	n := startMember(t)
	n.create("local")
	n.dir.own("b", "q")
	p := n.stream()
	refused := p.publish("q", nil)
	require.Equal(t, "NOT_OWNER", refused.GetReason())
	require.Equal(t, "b", refused.GetNotOwner().GetPair())
	n.dir.own("", "q")
	n.create("q")
	require.Nil(t, p.publish("local", nil))
	require.Equal(t, "NOT_OWNER", p.publish("q", nil).GetReason())
	retried := p.publish("q", func(r *pb.PublishStreamRequest) { r.Publish.Producer.Retry = true })
	require.Equal(t, "NOT_OWNER", retried.GetReason())
	require.True(t, retried.GetSettled())
	require.Nil(t, n.stream().publish("q", func(r *pb.PublishStreamRequest) { r.Publish.Producer.Id = "other" }),
		"another stream")
	resumes := func(r *pb.PublishStreamRequest) { r.Resumes = true }
	require.Nil(t, p.publish("q", resumes))
	require.Nil(t, p.publish("q", nil))

	n.dir.setDown(true)
	for range 2 {
		unknown := p.publish("new", resumes)
		require.Equal(t, "DIRECTORY_UNAVAILABLE", unknown.GetReason())
		require.Equal(t, uint32(codes.Unavailable), unknown.GetCode())
	}
	require.Nil(t, p.publish("local", nil), "the stream continues")
	retried = p.publish("new", func(r *pb.PublishStreamRequest) { r.Publish.Producer.Retry = true })
	require.Equal(t, "DIRECTORY_UNAVAILABLE", retried.GetReason())
	require.True(t, retried.GetSettled())
	n.dir.setDown(false)
	require.Equal(t, "DIRECTORY_UNAVAILABLE", p.publish("new", nil).GetReason())
	require.Equal(t, "QUEUE_NOT_FOUND", p.publish("new", resumes).GetReason())
	n.create("new")
	require.Nil(t, p.publish("new", nil), "a queue that no pair owns is looked up for each request")
}

// A stream with requests for too many queues of other pairs ends.
func TestStreamWithManyRefusedQueues(t *testing.T) {
	n := startMember(t)
	p := n.stream()
	for i := range maxRefusedQueues {
		name := fmt.Sprint("q", i)
		n.dir.own("b", name)
		require.Equal(t, "NOT_OWNER", p.publish(name, nil).GetReason())
	}
	require.Equal(t, "NOT_OWNER", p.publish("q0", nil).GetReason())
	n.dir.own("b", "more")
	p.next++
	require.NoError(t, p.stream.Send(&pb.PublishStreamRequest{Correlation: p.next, Publish: &pb.PublishRequest{
		Queue: "more", Messages: body("x"), Producer: as(p.next, false),
	}}))
	_, err := p.stream.Recv()
	require.Equal(t, outcome{reason: "BLOCKED"}, outcomeOf(t, err))
	var through uint64
	for _, d := range status.Convert(err).Details() {
		if s, is := d.(*pb.Submitted); is {
			through = s.GetThrough()
		}
	}
	require.Zero(t, through, "no request was submitted")
}
