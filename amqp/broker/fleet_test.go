// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const homePair = "home"

// fleetWorld is a fleet with one queue.
type fleetWorld struct {
	mu     sync.Mutex // guards the fields below
	owner  string     // pair of the queue; empty while the owner is unknown
	stored []string   // bodies in the order of storage
	random *rand.Rand
	breaks bool // streams break at random
}

func (w *fleetWorld) chance(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.random.IntN(n) == 0
}

func (w *fleetWorld) latency() {
	w.mu.Lock()
	d := time.Duration(w.random.IntN(2000)) * time.Microsecond
	w.mu.Unlock()
	<-time.After(d)
}

func (w *fleetWorld) setOwner(pair string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.owner = pair
}

// fleetNode is the active node of a pair. Like a node, it refuses all requests of a stream after the first refusal,
// until the client resumes, and it answers a retry with the result of the first attempt.
type fleetNode struct {
	node

	name  string
	world *fleetWorld

	mu      sync.Mutex // guards results
	results map[string]bool
}

func (n *fleetNode) PublishStream(
	stream grpc.BidiStreamingServer[pb.PublishStreamRequest, pb.PublishStreamResponse],
) error {
	var refused *pb.RequestError
	for {
		req, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, one := range append([]*pb.PublishStreamRequest{req}, req.GetMore()...) {
			n.world.latency()
			if n.world.breaks && n.world.chance(20) {
				return refusedUnknown()
			}
			if one.GetResumes() {
				refused = nil
			}
			resp := &pb.PublishStreamResponse{Correlation: one.GetCorrelation(), AcceptsMore: true}
			if resp.Error = n.publish(one.GetPublish(), refused); resp.GetError() != nil {
				refused = resp.GetError()
			}
			if n.world.breaks && n.world.chance(20) {
				return refusedUnknown() // the response is lost
			}
			if err := stream.Send(resp); err != nil {
				return err
			}
		}
	}
}

// refusedUnknown is the error of a stream after which the outcome of its requests is unknown.
func refusedUnknown() error { return refused(codes.Unavailable, "") }

func (n *fleetNode) publish(req *pb.PublishRequest, sticky *pb.RequestError) *pb.RequestError {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := req.GetProducer().GetId() + " " + strconv.FormatUint(req.GetProducer().GetSequence(), 10)
	if n.results[key] {
		return nil
	}
	if sticky != nil {
		return &pb.RequestError{
			Code: sticky.GetCode(), Reason: sticky.GetReason(), NotOwner: sticky.GetNotOwner(),
			Settled: req.GetProducer().GetRetry(), // decided in the log
		}
	}
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	switch n.world.owner {
	case n.name:
		for _, m := range req.GetMessages() {
			n.world.stored = append(n.world.stored, string(m.GetBody()))
		}
		n.results[key] = true
		return nil
	case "":
		return &pb.RequestError{
			Code: uint32(codes.Unavailable), Reason: "DIRECTORY_UNAVAILABLE", Settled: req.GetProducer().GetRetry(),
		}
	}
	return &pb.RequestError{
		Code: uint32(codes.FailedPrecondition), Reason: "NOT_OWNER", Settled: req.GetProducer().GetRetry(),
		NotOwner: &pb.NotOwner{Queue: req.GetQueue(), Pair: n.world.owner},
	}
}

// forwarder connects a client to the pairs of a fleetWorld.
type forwarder struct {
	grpc.ClientConnInterface // to the node of the home pair

	pairs map[string]grpc.ClientConnInterface
}

func (f *forwarder) Pair(n *pb.NotOwner) (grpc.ClientConnInterface, bool, error) {
	return f.pairs[n.GetPair()], n.GetPair() == homePair, nil
}

func (f *forwarder) Pairs() []*pb.NotOwner { return nil }

func (f *forwarder) Close() {}

func (w *fleetWorld) connect(t *testing.T, name string) (*fleetNode, grpc.ClientConnInterface) {
	t.Helper()
	n := &fleetNode{name: name, world: w, results: make(map[string]bool)}
	l := bufconn.Listen(1 << 20)
	g := grpc.NewServer()
	pb.RegisterQueueServiceServer(g, n)
	go func() { _ = g.Serve(l) }()
	t.Cleanup(g.Stop)
	cc, err := grpc.NewClient("passthrough:///"+name, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	require.NoError(t, err)
	t.Cleanup(func() { _ = cc.Close() })
	return n, cc
}

// While the queue of a link moves between pairs, and streams break, each message is stored once, in order.
func TestMessagesFollowQueue(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testMessagesFollowQueue(t, seed) })
		})
	}
}

func testMessagesFollowQueue(t *testing.T, seed uint64) {
	const count = 1500
	w := &fleetWorld{
		owner: homePair, random: rand.New(rand.NewPCG(seed, 0)), breaks: seed%2 == 1,
	}
	pairs := map[string]grpc.ClientConnInterface{}
	names := []string{homePair, "b", "c"}
	for _, name := range names[1:] {
		_, pairs[name] = w.connect(t, name)
	}
	home := &fleetNode{name: homePair, world: w, results: make(map[string]bool)}
	s, _, stop := serveFor(t, home, func(o *Options) {
		inMemory(o)
		o.Forward = func(Client) Forwarder { return &forwarder{o.Services, pairs} }
	})
	defer stop()
	p := dial(t, s, "c")
	p.attachSender(0, &wire.Node{Address: "q"})
	done := make(chan struct{})
	moved := make(chan struct{})
	go func() {
		defer close(moved)
		for at := 0; ; {
			select {
			case <-done:
				return
			case <-time.After(5 * time.Millisecond):
			}
			if at != 0 {
				w.setOwner("") // the queue is fenced
				<-time.After(2 * time.Millisecond)
			}
			at = (at + 1 + rand.New(rand.NewPCG(seed, uint64(at))).IntN(2)) % len(names)
			w.setOwner(names[at])
		}
	}()
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := uint32(0); i < count; i += 50 {
			p.write(transfers(0, i, 50, false, nil))
			<-time.After(3 * time.Millisecond)
		}
	}()
	for accepted := uint32(0); accepted < count; {
		d := next[*wire.Disposition](p)
		require.NotNil(t, d, "%d messages are accepted", accepted)
		require.Equal(t, wire.Accepted{}, d.State)
		accepted += d.Last - d.First + 1
	}
	close(done)
	<-moved
	<-sent
	require.Len(t, w.stored, count)
	for i, body := range w.stored {
		require.Equal(t, strconv.Itoa(i), body)
	}
}
