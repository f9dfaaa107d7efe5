// SPDX-License-Identifier: Apache-2.0

// Package forward sends calls to the owners of queues in a fleet, and authenticates such calls (decision 0039). The
// calls are those of clients that use a node through another protocol: AMQP or the console. A forwarded call has the
// rights that its client has at the receiving pair, never those of a node.
package forward

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

const (
	// maxPairs limits the pairs to which a client connects.
	maxPairs = 1024
	// maxFence is the maximum time for which a call waits for the owner of a queue.
	maxFence = 3 * time.Second
)

// ErrTooManyPairs is returned if a client uses queues of more than 1,024 pairs, or another pair after Close.
var ErrTooManyPairs = errors.New("client uses queues of too many pairs")

// Options configures New. All fields are required.
type Options struct {
	// Pair and Node are the names of this pair and node.
	Pair, Node string
	// Home connects to the active node of this pair, on behalf of the caller.
	Home grpc.ClientConnInterface
	// Dial connects to a node of another pair. The connection must authenticate this node as a node of the fleet, if it
	// can.
	Dial func(address string) (Conn, error)
	// Caller returns the caller. ctx is the context of one of its calls. The result is cached.
	Caller func(ctx context.Context) (Caller, error)
	// Pairs returns the other pairs of the fleet, sorted by name, without queue and epoch.
	Pairs func() []*pb.NotOwner
	// Wait is the maximum time for which a unary call waits until a node of another pair is active. It also limits the
	// wait for the owner of a queue, which is at most maxFence.
	Wait time.Duration
}

// Conn is a connection to a node: a *grpc.ClientConn, or one that several clients share.
type Conn interface {
	grpc.ClientConnInterface

	GetState() connectivity.State
	Connect()
	WaitForStateChange(ctx context.Context, from connectivity.State) bool
	Close() error
}

// Client connects one caller to all pairs of the fleet. As a connection, it sends calls to this pair, and repeats a
// call at the owner of the queue after the error NOT_OWNER. It does not repeat a stream with several requests, or a
// stream with a response. For requests with a producer, the caller must use Pair instead. A Client is safe for
// concurrent use.
type Client struct {
	o      Options
	caller atomic.Pointer[Caller]

	mu     sync.Mutex // guards the fields below
	pairs  map[string]*pairConn
	closed bool
}

// New creates a Client. The caller must call Close.
func New(o Options) *Client { return &Client{o: o, pairs: make(map[string]*pairConn)} }

// Close closes the connections to other pairs.
func (c *Client) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, p := range c.pairs {
		p.close()
	}
}

// Pairs returns the other pairs of the fleet, sorted by name.
func (c *Client) Pairs() []*pb.NotOwner { return c.o.Pairs() }

// Home returns the name of this pair.
func (c *Client) Home() string { return c.o.Pair }

// Pair returns the connection to the active node of the pair that n names. own reports whether it is this pair. Streams
// return NOT_ACTIVE if the node is not active; the next stream is then sent to another node of the pair.
func (c *Client) Pair(n *pb.NotOwner) (conn grpc.ClientConnInterface, own bool, err error) {
	if n.GetPair() == c.o.Pair {
		return c.o.Home, true, nil
	}
	c.mu.Lock()
	p := c.pairs[n.GetPair()]
	if p == nil {
		if c.closed || len(c.pairs) >= maxPairs {
			c.mu.Unlock()
			return nil, false, ErrTooManyPairs
		}
		p = &pairConn{client: c, name: n.GetPair(), conns: make(map[string]Conn)}
		c.pairs[n.GetPair()] = p
	}
	c.mu.Unlock()
	p.setAddresses(n.GetAddresses())
	return p, false, nil
}

func (c *Client) outgoing(ctx context.Context) (context.Context, error) {
	who := c.caller.Load()
	if who == nil {
		found, err := c.o.Caller(ctx)
		if err != nil {
			return nil, err
		}
		who = &found
		c.caller.Store(who)
	}
	return who.outgoing(ctx, c.o.Pair, c.o.Node)
}

// walk is the sequence of pairs to which a call is sent.
type walk struct {
	client  *Client
	at      grpc.ClientConnInterface
	visited map[string]bool
	began   time.Time
	pause   time.Duration
}

func (c *Client) walk() *walk {
	return &walk{
		client: c, at: c.o.Home, visited: map[string]bool{c.o.Pair: true}, began: time.Now(), pause: firstPause,
	}
}

// follow reports whether the call must be sent again, to w.at. Otherwise, it returns the error for the caller. Before
// another attempt at the same pair, it waits.
func (w *walk) follow(ctx context.Context, err error) (again bool, _ error) {
	if err == nil {
		return false, nil
	}
	why, owner := explain(err)
	if owner == nil && why != "DIRECTORY_UNAVAILABLE" {
		return false, err
	}
	wait := owner == nil
	if owner != nil {
		next, _, failed := w.client.Pair(owner)
		if failed != nil {
			return false, status.Error(codes.ResourceExhausted, fmt.Sprintf("%s; %v", status.Convert(err).Message(), failed))
		}
		wait = w.visited[owner.GetPair()]
		w.at, w.visited[owner.GetPair()] = next, true
	}
	if !wait {
		return true, nil
	}
	if time.Since(w.began) > min(maxFence, w.client.o.Wait) || !sleep(ctx, w.pause) {
		return false, err
	}
	w.pause = min(2*w.pause, longestPause)
	return true, nil
}

// explain returns the reason of an error, and the owner that it names, if any.
func explain(err error) (why string, owner *pb.NotOwner) {
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			if d.GetDomain() == reason.Domain {
				why = d.GetReason()
			}
		case *pb.NotOwner:
			owner = d
		}
	}
	return why, owner
}

// Invoke makes a unary call.
func (c *Client) Invoke(ctx context.Context, method string, args, reply any, o ...grpc.CallOption) error {
	w := c.walk()
	for {
		again, err := w.follow(ctx, w.at.Invoke(ctx, method, args, reply, o...))
		if !again {
			return err
		}
	}
}

// NewStream starts a streaming call.
func (c *Client) NewStream(
	ctx context.Context, d *grpc.StreamDesc, method string, o ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := c.o.Home.NewStream(ctx, d, method, o...)
	if err != nil || d.ClientStreams {
		return s, err //nolint:wrapcheck // a status
	}
	return &followingStream{ClientStream: s, ctx: ctx, walk: c.walk(), open: func(at grpc.ClientConnInterface) (
		grpc.ClientStream, error,
	) {
		return at.NewStream(ctx, d, method, o...)
	}}, nil
}

// followingStream is a stream with one request. One goroutine uses it.
type followingStream struct {
	grpc.ClientStream

	ctx     context.Context //nolint:containedctx // context of the call
	walk    *walk
	open    func(at grpc.ClientConnInterface) (grpc.ClientStream, error)
	request any
	began   bool // the first response was received
}

// SendMsg implements grpc.ClientStream.
func (s *followingStream) SendMsg(m any) error {
	s.request = m
	return s.ClientStream.SendMsg(m) //nolint:wrapcheck // a status
}

// RecvMsg implements grpc.ClientStream.
func (s *followingStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	for !s.began {
		again, final := s.walk.follow(s.ctx, err)
		if !again {
			s.began, s.request = true, nil
			return final
		}
		err = s.repeat(m)
	}
	return err
}

func (s *followingStream) repeat(m any) error {
	next, err := s.open(s.walk.at)
	if err != nil {
		return err
	}
	s.ClientStream = next
	if err := next.SendMsg(s.request); err == nil { // otherwise RecvMsg returns the cause
		_ = next.CloseSend() // it never fails
	}
	return next.RecvMsg(m) //nolint:wrapcheck // a status
}
