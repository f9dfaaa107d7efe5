// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// node is one address, its connection and what it last said.
type node struct {
	address string
	locator *locator
	kick    chan struct{} // capacity 1: ask for the status now
	again   chan struct{} // capacity 1: open the watch again now, after a refusal
	users   atomic.Int64  // operations under way on this node

	mu     sync.Mutex // guards the fields below
	cc     *grpc.ClientConn
	closed bool // cc is not replaced any more

	// Guarded by locator.mu.
	observed uint64
	role     pb.Role
	term     uint64
	pairID   string
	reason   string
	err      error     // why there is no connection
	refused  time.Time // when it refused what this client shows, last; zero: it does not
	asking   bool      // it is asked again after a refusal
	short    bool      // fewer nodes are in sync than the pair wants: writes are refused until one comes back
	names    string    // address of the node that it says is active; empty if it is itself, or does not know
}

// rank orders nodes by how good a target they are; 0 is none at all. The caller holds locator.mu.
func (n *node) rank() int {
	switch n.role {
	case pb.Role_ROLE_ACTIVE, pb.Role_ROLE_ACTIVE_ALONE:
		return 2
	case pb.Role_ROLE_BLOCKED:
		return 1
	default:
		return 0
	}
}

// conn returns the present connection.
func (n *node) conn() *grpc.ClientConn {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cc
}

// replace discards a connection that does not answer; all calls on it fail immediately. It does nothing if another call
// has replaced the connection, or after close.
func (n *node) replace(old *grpc.ClientConn) {
	fresh, err := n.locator.opts.dial(n.address)
	if err != nil {
		return // the options are wrong, which dialling the first time would have told
	}
	n.mu.Lock()
	if n.cc == old && !n.closed {
		n.cc, fresh = fresh, old
	}
	n.mu.Unlock()
	_ = fresh.Close() // the old one, or the new one if it was not needed; an error changes nothing
}

func (n *node) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	_ = n.cc.Close() // fails only when closed already
}

// watch keeps a WatchStatus stream open until ctx ends. A node that is down is tried again within milliseconds while no
// other is active, and at leisure otherwise. So is one that is there and ends each connection before it answers, as
// when the two ends disagree about TLS: a client that knocks dozens of times a second for hours uses up what the node
// lets everybody at its address try.
func (n *node) watch(ctx context.Context) {
	retry, knocks := n.locator.opts.newBackoff(), n.locator.opts.newBackoff()
	knocks.MaxInterval = n.locator.opts.ProbeInterval
	refusals, refusedWait := 0, n.locator.opts.ProbeInterval
	for ctx.Err() == nil {
		delivered, fresh, e := n.watchOnce(ctx, &refusals)
		if delivered {
			retry.Reset()
		}
		wait := retry.NextBackOff()
		if !delivered && e.ended() {
			wait = max(wait, knocks.NextBackOff())
		} else {
			knocks.Reset()
		}
		t, changed := n.locator.state()
		switch {
		case fresh:
		case refuses(e):
			// Others behind the same address must not suffer from what this client shows.
			wait, changed = refusedWait, nil
			refusedWait = min(2*refusedWait, maxRefusedWait)
		case t != nil:
			wait = min(10*wait, n.locator.opts.ProbeInterval)
			fallthrough
		default:
			refusedWait = n.locator.opts.ProbeInterval
		}
		timer := time.NewTimer(max(wait, e.retryAfter))
		select {
		case <-timer.C:
		case <-n.again:
		case <-changed:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// maxRefusedWait is how long at most a node that refuses this client is not asked again by itself.
const maxRefusedWait = 30 * time.Second

// refuses tells whether an error means that a node does not let this client in.
func refuses(err error) bool { return errors.Is(err, ErrUnauthenticated) || errors.Is(err, ErrDenied) }

// watchOnce reads one stream to its end and tells whether it delivered anything, why it ended, and whether there is a
// fresh token to show instead of one that was refused. A stream that ended because its token has expired is no lost
// connection then: nothing has happened to the node.
func (n *node) watchOnce(ctx context.Context, refusals *int) (delivered, fresh bool, e *Error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cc, began := n.conn(), time.Now()
	stream, err := pb.NewAdminServiceClient(cc).WatchStatus(ctx, &pb.WatchStatusRequest{})
	for err == nil {
		var resp *pb.WatchStatusResponse
		if resp, err = stream.Recv(); err == nil {
			delivered = true
			n.locator.observe(n, resp.GetStatus(), 0)
		}
	}
	if n.conn() != cc {
		// poll has thrown the connection away, and gRPC says only that it was closed
		err = &Error{
			Address: n.address, Code: codes.Unavailable, unreached: true,
			Message: "it does not answer: it is stopped, hangs, or is cut off",
		}
	}
	e = asError(ctx, n.address, err)
	if delivered {
		*refusals = 0
	}
	fresh = n.locator.opts.tokens.isFresh(ctx, e, began, refusals)
	if delivered && fresh {
		return delivered, fresh, e
	}
	n.locator.lost(n, e, fresh)
	if !delivered && ctx.Err() == nil && !refuses(e) && !e.ended() {
		// A new connection has no waits of gRPC's own behind it: this loop alone decides when to try again. Where a
		// process ends the connections, those waits are welcome: they grow, too.
		n.replace(cc)
	}
	return delivered, fresh, e
}

// pollWhenAsked asks for the status when it is kicked, often while a caller searches, and every ProbeInterval while
// operations wait for this node.
func (n *node) pollWhenAsked(ctx context.Context) {
	for {
		wait := n.locator.opts.ProbeInterval
		searching := n.locator.searching()
		if searching {
			wait = n.locator.opts.RetryMax
		}
		timer := time.NewTimer(wait)
		select {
		case <-n.kick:
			n.poll(ctx)
		case <-timer.C:
			if searching || n.users.Load() > 0 {
				n.poll(ctx)
			}
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// poll asks once. A node that does not answer in time is frozen or cut off: its connection is thrown away, which fails
// whatever waits there, and the next one shows whether it is back.
func (n *node) poll(ctx context.Context) {
	asked := n.locator.observations(n)
	if asked == 0 {
		return // the first word comes from the watch, which is being set up
	}
	cc := n.conn()
	ctx, cancel := context.WithTimeout(ctx, n.locator.opts.ProbeInterval)
	defer cancel()
	st, err := pb.NewAdminServiceClient(cc).GetStatus(ctx, &pb.GetStatusRequest{})
	switch {
	case err == nil:
		n.locator.observe(n, st, asked)
	case status.Code(err) == codes.DeadlineExceeded:
		n.replace(cc)
	}
}
