// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"time"

	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Forwarder connects a client to all pairs of a fleet. Its own methods send calls to this pair, and follow NOT_OWNER.
// They do not follow it after the first response of a stream, or in streams with several requests. All calls have the
// rights of the client.
type Forwarder interface {
	grpc.ClientConnInterface

	// Pair returns the connection to the active node of the pair that n names. own reports whether it is this pair. It
	// does not block.
	Pair(n *pb.NotOwner) (c grpc.ClientConnInterface, own bool, err error)
	// Pairs returns the other pairs.
	Pairs() []*pb.NotOwner
	// Close closes the connections to other pairs.
	Close()
}

// pair is a pair that queues of a client belong to.
type pair struct {
	name   string // empty: the pair of this node
	queues pb.QueueServiceClient
}

func (p *pair) own() bool { return p.name == "" }

// connectPairs creates the clients of the node's services.
func (c *conn) connectPairs() {
	c.home = &pair{queues: pb.NewQueueServiceClient(c.server.o.Services)}
	c.queues = c.home.queues
	if c.server.o.Forward == nil {
		return
	}
	if c.fleet = c.server.o.Forward(Client{Address: c.remote, TLS: c.secured}); c.fleet != nil {
		c.queues = pb.NewQueueServiceClient(c.fleet)
	}
}

func (c *conn) closePairs() {
	if c.fleet != nil {
		c.fleet.Close()
	}
}

// pairOf returns the pair that owns a queue, as reported by NOT_OWNER.
func (c *conn) pairOf(n *pb.NotOwner) (*pair, error) {
	cc, own, err := c.fleet.Pair(n)
	if err != nil {
		return nil, err
	}
	if own {
		return c.home, nil
	}
	return &pair{name: n.GetPair(), queues: pb.NewQueueServiceClient(cc)}, nil
}

// path is the sequence of pairs to which the requests for a queue are sent.
type path struct {
	at *pair
	// visited contains the pairs that have returned NOT_OWNER or DIRECTORY_UNAVAILABLE since the last success.
	visited map[string]bool
	pause   time.Duration
	since   time.Time // first failure since the last success
}

// progress records a success.
func (w *path) progress() { w.visited, w.pause, w.since = nil, 0, time.Time{} }

// moved reports whether the path has left the pair of this node since the last success, or is at another pair.
func (w *path) moved() bool { return !w.at.own() || len(w.visited) > 1 }

// follow moves the path after NOT_OWNER. It returns the time to wait before the next attempt: 0 if the pair was not
// visited.
func (w *path) follow(c *conn, n *pb.NotOwner) (wait time.Duration, err error) {
	next, err := c.pairOf(n)
	if err != nil {
		return 0, err
	}
	w.visit()
	w.at = next
	if w.visited[next.name] {
		return w.backoff(), nil
	}
	return 0, nil
}

func (w *path) visit() {
	if w.visited == nil {
		w.visited = make(map[string]bool)
	}
	w.visited[w.at.name] = true
	if w.since.IsZero() {
		w.since = time.Now()
	}
}

// backoff doubles the time to wait, up to longestPause, and returns it. It is called before another attempt at a pair
// that was already tried since the last success.
func (w *path) backoff() time.Duration {
	if w.since.IsZero() {
		w.since = time.Now()
	}
	w.pause = min(max(firstPause, 2*w.pause), longestPause)
	return w.pause
}

// rest waits, and returns false if ctx ends first.
func rest(ctx context.Context, d time.Duration) bool {
	if d == 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
