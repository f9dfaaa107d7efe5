// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"net"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcdconn"
	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/simetcd"
	"github.com/lockstep-mq/lockstep/test/simnet"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

const (
	latency = time.Millisecond // of a message between the pairs
	bound   = 10 * time.Minute // of waits, in simulated time

	directoryAddress = "127.0.0.3:2379"
)

// world is a fleet of two pairs with one node each, in simulated time: "a" has the queues, and "b" pulls them.
type world struct {
	t    *testing.T
	net  *simnet.Network
	a, b *pair
	// step is called before each step of a move.
	step func(ctx context.Context, step string) error
	hooks
}

// hooks change the responses of the source, and count requests. They must be set before the move begins.
type hooks struct {
	messages func(*pb.PullMessagesResponse)
	digest   func(*pb.DigestMessagesRequest, *pb.DigestMessagesResponse)
	state    func(ctx context.Context, resp *pb.PullStateResponse) error
	digests  func(*pb.GetMoveDigestsResponse)
	prepared func(*pb.PrepareFenceResponse)

	fenced bool // a fence was requested
}

func simulate(t *testing.T, f func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{
			t: t, net: simnet.New(simnet.Options{Delay: latency}),
			step: func(context.Context, string) error { return nil },
		}
		stopDirectory := w.startDirectory()
		defer stopDirectory()
		w.a, w.b = w.newPair("a", "127.0.0.1"), w.newPair("b", "127.0.0.2")
		defer w.a.stop()
		defer w.b.stop()
		f(w)
	})
}

// pair is a node that is the active of a pair.
type pair struct {
	w       *world
	name    string
	process *simnet.Process
	fs      *memfs.FS
	store   *store.Store
	etcd    *clientv3.Client
	dir     *fleet.Directory
	primary *replication.Primary
	serving *session.Current
	m       *Manager
	term    uint64
	running sync.WaitGroup
	cancel  context.CancelFunc
	server  *grpc.Server
}

func (w *world) newPair(name, host string) *pair {
	w.t.Helper()
	p := &pair{w: w, name: name, fs: memfs.New(), process: w.net.NewProcess(host)}
	s, err := store.Open(store.Options{FS: p.fs, Dir: "/data", MemoryBudget: store.MinMemoryBudget})
	require.NoError(w.t, err)
	require.NoError(w.t, s.JoinPair(uuid.New()))
	p.store = s
	p.serving = session.NewCurrent(
		func() *apierror.NotActiveError { return &apierror.NotActiveError{} },
		func() failover.Status { return failover.Status{} }, func() <-chan struct{} { return nil },
	)
	o := Options{
		Pair: name, Member: p, Store: s, Serving: p.serving,
		Dial: []grpc.DialOption{grpc.WithContextDialer(p.process.Dial)}, Supported: func() error { return nil },
		Logger: zap.NewNop(),
	}
	if name == "b" {
		o.Step = func(ctx context.Context, step string) error { return w.step(ctx, step) }
	}
	p.m = New(o)
	p.activate()
	address := net.JoinHostPort(host, "1")
	p.join(address)
	listener, err := p.process.Listen(w.t.Context(), address)
	require.NoError(w.t, err)
	p.server = grpc.NewServer()
	pb.RegisterFleetServiceServer(p.server, &service{p: p})
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.running.Go(func() { _ = p.server.Serve(listener) })
	p.running.Go(func() { p.m.Run(ctx) })
	p.running.Go(func() { _ = p.dir.Run(ctx) })
	return p
}

// activate starts a new term.
func (p *pair) activate() {
	p.term++
	ready := make(chan struct{})
	primary, err := replication.StartPrimary(replication.PrimaryOptions{
		Store: p.store, Term: p.term, Config: replication.PrimaryConfig{Config: p.term, Serve: true},
		Events: func(e replication.Event) {
			if _, is := e.(replication.ActiveReady); is {
				close(ready)
			}
		},
	})
	require.NoError(p.w.t, err)
	<-ready
	p.primary = primary
	p.serving.Set(&session.Session{Primary: primary})
	p.m.Activate(primary)
}

// restart ends the active role and starts it again, as after a failover.
func (p *pair) restart() {
	p.m.Deactivate()
	p.serving.Set(nil)
	p.primary.Stop()
	p.activate()
}

func (p *pair) stop() {
	p.cancel()
	p.m.Deactivate()
	p.primary.Stop()
	p.server.Stop()
	p.running.Wait()
	require.NoError(p.w.t, p.etcd.Close())
	p.process.Kill()
	require.NoError(p.w.t, p.store.Close())
}

func (p *pair) try(fill func(*txn.Builder)) (*txn.Result, error) {
	return txn.Propose(context.Background(), p.primary, time.Now(), fill)
}

func (p *pair) commit(fill func(*txn.Builder)) *txn.Result {
	p.w.t.Helper()
	r, err := p.try(fill)
	require.NoError(p.w.t, err)
	return r
}

// create creates a queue at the pair, which must be the only live one.
func (p *pair) create(name string, c txn.Config) (id uint64) {
	p.w.t.Helper()
	require.NoError(p.w.t, p.dir.PutLoad(p.w.t.Context(), fleet.Load{}))
	owner, err := p.dir.Assign(p.w.t.Context(), name, "")
	require.NoError(p.w.t, err)
	p.commit(func(b *txn.Builder) {
		b.OwnQueue(name, owner.Epoch)
		b.CreateQueue(name, c, "s")
	})
	info, err := query.QueueByName(p.store, name)
	require.NoError(p.w.t, err)
	return info.ID
}

// publish publishes a message with the given number as its ID. It returns the error of the transaction.
func (p *pair) publish(id uint64, number, bytes int) error {
	_, err := p.try(func(b *txn.Builder) {
		b.BeginPublish(id)
		b.MessageWith(time.Now().UnixMilli(), &txn.Attributes{MessageID: fmt.Sprint(number)}, nil, make([]byte, bytes))
		b.EndPublish()
	})
	return err
}

// messages returns the unacknowledged messages of a queue.
func (p *pair) messages(name string) (all []store.Delivery) {
	p.w.t.Helper()
	info, err := query.QueueByName(p.store, name)
	require.NoError(p.w.t, err)
	for from := uint64(1); ; {
		list, next, err := p.store.Read(context.Background(), store.ReadRequest{
			Queue: info.ID, Sub: 1, From: from, MaxMessages: 1000,
		}, nil)
		require.NoError(p.w.t, err)
		if len(list) == 0 {
			return all
		}
		all, from = append(all, list...), next
	}
}

// move begins a move of queues to pair b.
func (w *world) move(queues ...string) uint64 {
	w.t.Helper()
	m, err := w.b.m.Begin(w.t.Context(), queues, "")
	require.NoError(w.t, err)
	return m.Epoch
}

// ended waits until a move has ended, and returns its state.
func (w *world) ended(epoch uint64) Progress {
	w.t.Helper()
	for began := time.Now(); time.Since(began) < bound; w.wait(latency) {
		moves, _ := w.b.m.Moves()
		i := slices.IndexFunc(moves, func(p Progress) bool { return p.Epoch == epoch })
		if i < 0 || moves[i].Phase < PhaseDone {
			continue
		}
		return moves[i]
	}
	require.FailNow(w.t, "the move did not end")
	return Progress{}
}

// gone waits until neither pair has a record of a move.
func (w *world) gone(epoch uint64) {
	w.t.Helper()
	for began := time.Now(); time.Since(began) < bound; w.wait(latency) {
		_, source := query.Move(w.a.store, epoch)
		_, target := query.Move(w.b.store, epoch)
		if !source && !target && len(w.b.dir.Moves()) == 0 {
			return
		}
	}
	require.FailNow(w.t, "the move did not end")
}

func (w *world) wait(d time.Duration) {
	timer := time.NewTimer(d) // simulated
	<-timer.C
}

// owns reports whether a pair owns a queue and serves it.
func (p *pair) owns(name string) bool {
	_, err := query.QueueByName(p.store, name)
	_, _, fenced := query.Fence(p.store, name)
	return err == nil && !fenced
}

// service serves the requests of the other pair.
type service struct {
	pb.UnimplementedFleetServiceServer

	p *pair
}

func respond[T any](resp T, err error) (T, error) {
	return resp, apierror.ToStatus(err)
}

func (s *service) GetMoveSource(
	_ context.Context, req *pb.GetMoveSourceRequest,
) (*pb.GetMoveSourceResponse, error) {
	return respond(s.p.m.Source(req))
}

func (s *service) PullMessages(
	req *pb.PullMessagesRequest, stream grpc.ServerStreamingServer[pb.PullMessagesResponse],
) error {
	return apierror.ToStatus(s.p.m.Messages(stream.Context(), req, func(resp *pb.PullMessagesResponse) error {
		if f := s.p.w.messages; f != nil {
			for i, r := range resp.GetRecords() {
				resp.Records[i] = slices.Clone(r) // part of the store
			}
			f(resp)
		}
		return stream.Send(resp)
	}))
}

func (s *service) DigestMessages(
	ctx context.Context, req *pb.DigestMessagesRequest,
) (*pb.DigestMessagesResponse, error) {
	resp, err := s.p.m.MessageDigests(ctx, req)
	if f := s.p.w.digest; f != nil && err == nil {
		f(req, resp)
	}
	return respond(resp, err)
}

func (s *service) PullState(ctx context.Context, req *pb.PullStateRequest) (*pb.PullStateResponse, error) {
	resp, err := s.p.m.State(ctx, req)
	if f := s.p.w.state; f != nil && err == nil {
		err = f(ctx, resp)
	}
	return respond(resp, err)
}

func (s *service) PrepareFence(
	ctx context.Context, req *pb.PrepareFenceRequest,
) (*pb.PrepareFenceResponse, error) {
	resp, err := s.p.m.Prepare(ctx, req)
	if f := s.p.w.prepared; f != nil && err == nil {
		f(resp)
	}
	return respond(resp, err)
}

func (s *service) FenceQueues(ctx context.Context, req *pb.FenceQueuesRequest) (*pb.FenceQueuesResponse, error) {
	s.p.w.fenced = true
	return respond(&pb.FenceQueuesResponse{}, s.p.m.Fence(ctx, req))
}

func (s *service) GetMoveDigests(
	ctx context.Context, req *pb.GetMoveDigestsRequest,
) (*pb.GetMoveDigestsResponse, error) {
	resp, err := s.p.m.Digests(ctx, req.GetEpoch())
	if f := s.p.w.digests; f != nil && err == nil {
		f(resp)
	}
	return respond(resp, err)
}

func (s *service) UnfenceQueues(
	ctx context.Context, req *pb.UnfenceQueuesRequest,
) (*pb.UnfenceQueuesResponse, error) {
	return respond(&pb.UnfenceQueuesResponse{}, s.p.m.Unfence(ctx, req))
}

func (s *service) DropMoved(ctx context.Context, req *pb.DropMovedRequest) (*pb.DropMovedResponse, error) {
	return respond(&pb.DropMovedResponse{}, s.p.m.Drop(ctx, req))
}

// startDirectory starts the server of the directory.
func (w *world) startDirectory() (stop func()) {
	w.t.Helper()
	server, process := simetcd.New(simetcd.Options{}), w.net.NewProcess("127.0.0.3")
	listener, err := process.Listen(w.t.Context(), directoryAddress)
	require.NoError(w.t, err)
	var running sync.WaitGroup
	running.Go(func() { _ = server.Serve(listener) })
	return func() {
		server.Stop()
		running.Wait()
		process.Kill()
	}
}

// join starts the client of the directory, and adds the pair to the fleet.
func (p *pair) join(address string) {
	t := p.w.t
	t.Helper()
	var err error
	p.etcd, err = etcdconn.New(etcdconn.Options{
		Endpoints: []string{directoryAddress}, DialOptions: []grpc.DialOption{grpc.WithContextDialer(p.process.Dial)},
	})
	require.NoError(t, err)
	p.dir, err = fleet.New(fleet.Options{Client: p.etcd, Pair: p.name, PairID: p.name, State: p.state, LoadTTL: bound})
	require.NoError(t, err)
	id, _, err := p.dir.Join(t.Context(), fleet.Member{Addresses: []string{address}}, noQueues)
	require.NoError(t, err)
	epoch, err := p.dir.NewEpoch(t.Context(), id, 0)
	require.NoError(t, err)
	p.commit(func(b *txn.Builder) {
		b.Fleet(txn.FleetChange{Action: txn.FleetJoin, ID: uuid.MustParse(id), Pair: p.name, Epoch: epoch})
	})
}

func noQueues(context.Context) (iter.Seq2[string, uint64], error) {
	return func(func(string, uint64) bool) {}, nil
}

// state returns the state of the pair for the directory.
func (p *pair) state() fleet.PairState {
	member := query.Fleet(p.store)
	st := fleet.PairState{MaxEpoch: member.MaxEpoch, Term: 1}
	if member.Member() {
		st.FleetID = member.ID.String()
	}
	return st
}

// Directory and SetBlocked implement Member.
func (p *pair) Directory() *fleet.Directory  { return p.dir }
func (p *pair) SetBlocked(func(string) bool) {}

// moveState returns the state of a move in the log of pair b.
func (w *world) moveState(epoch uint64) queue.MoveState {
	m, _ := query.Move(w.b.store, epoch)
	return m.State
}

// id returns the number of a queue.
func (p *pair) id(name string) uint64 {
	p.w.t.Helper()
	info, err := query.QueueByName(p.store, name)
	require.NoError(p.w.t, err)
	return info.ID
}

func (p *pair) checkpoint() error {
	_, err := p.store.Checkpoint(context.Background())
	return err
}

// damage changes a byte of each occurrence of a text in the page file, and returns the number of occurrences.
func (p *pair) damage(text string) (n int) {
	const name = "/data/page.db"
	f, err := p.fs.OpenFile(name, os.O_RDWR, 0)
	require.NoError(p.w.t, err)
	info, err := p.fs.Stat(name)
	require.NoError(p.w.t, err)
	content := make([]byte, info.SizeBytes)
	_, err = f.ReadAt(content, 0)
	require.NoError(p.w.t, err)
	for from := 0; ; n++ {
		i := bytes.Index(content[from:], []byte(text))
		if i < 0 {
			require.NoError(p.w.t, f.Close())
			return n
		}
		_, err := f.WriteAt([]byte{text[0] ^ 1}, int64(from+i))
		require.NoError(p.w.t, err)
		from += i + 1
	}
}
