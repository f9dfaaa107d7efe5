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

type node struct {
	address string
	locator *locator
	trigger chan struct{} // capacity 1: request the status now
	again   chan struct{} // capacity 1: reopen the watch now, after a refusal
	users   atomic.Int64  // operations in progress on this node

	mu     sync.Mutex // guards the fields below
	cc     *grpc.ClientConn
	closed bool // cc is no longer replaced

	// The following fields are guarded by locator.mu.
	observed uint64
	role     pb.Role
	term     uint64
	pairID   string
	reason   string
	err      error     // why the connection is down
	refused  time.Time // time when the node rejected the credentials; zero if its last result was another one
	asking   bool      // a retry after a refusal is in progress
	removed  bool      // the pair was removed from its fleet: the node refuses clients
	short    bool      // fewer nodes are in sync than required: writes are refused
	names    string    // address of the active node, as reported by this node; empty if this node is active

	site *pb.SiteInfo // role of the pair among two sites, as last reported; nil without sites
}

// rank returns the suitability of the node as a target; 0 means unsuitable. locator.mu is held.
func (n *node) rank() int {
	if n.removed || n.isReplica() && !n.locator.opts.AnySite {
		return 0
	}
	return n.roleRank()
}

// roleRank returns the rank of the node within its pair, regardless of the role of the site.
func (n *node) roleRank() int {
	switch n.role {
	case pb.Role_ROLE_ACTIVE, pb.Role_ROLE_ACTIVE_ALONE:
		return 2
	case pb.Role_ROLE_BLOCKED:
		return 1
	default:
		return 0
	}
}

func (n *node) conn() *grpc.ClientConn {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cc
}

// replace closes the connection old and creates a new one; all calls on old fail immediately. It does nothing if
// another call has replaced old, or after close.
func (n *node) replace(old *grpc.ClientConn) {
	fresh, err := n.locator.opts.dial(n.address)
	if err != nil {
		return // invalid options, which the first dial would have reported
	}
	n.mu.Lock()
	if n.cc == old && !n.closed {
		n.cc, fresh = fresh, old
	}
	n.mu.Unlock()
	_ = fresh.Close() // the old connection, or the new one if unused; an error has no effect
}

func (n *node) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.closed = true
	_ = n.cc.Close() // Close fails only if the connection is already closed
}

// watch keeps a WatchStatus stream open until ctx ends. The backoff after a failure is longer while another node is
// active, and for a node that accepts connections but closes them without a response, as on a TLS mismatch: frequent
// attempts would exhaust the node's rate limit for all clients at the same address.
func (n *node) watch(ctx context.Context) {
	retry, dialBackoff := n.locator.opts.newBackoff(), n.locator.opts.newBackoff()
	dialBackoff.MaxInterval = n.locator.opts.ProbeInterval
	refusals, refusedWait := 0, n.locator.opts.ProbeInterval
	for ctx.Err() == nil {
		delivered, fresh, e := n.watchOnce(ctx, &refusals)
		if delivered {
			retry.Reset()
		}
		wait := retry.NextBackOff()
		if !delivered && e.ended() {
			wait = max(wait, dialBackoff.NextBackOff())
		} else {
			dialBackoff.Reset()
		}
		t, changed := n.locator.state()
		switch {
		case fresh:
		case refuses(e):
			// Retries with rejected credentials must not use up the rate limit of other clients at the same address.
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

const maxRefusedWait = 30 * time.Second

func refuses(err error) bool { return errors.Is(err, ErrUnauthenticated) || errors.Is(err, ErrDenied) }

// watchOnce reads one stream to its end. It reports whether the stream delivered a status, whether a fresh token can
// replace a rejected one, and why the stream ended. A stream that ended because the token expired does not count as a
// lost connection.
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
		// poll replaced the connection; gRPC reports only that it was closed
		err = &Error{
			Address: n.address, Code: codes.Unavailable, unreached: true,
			Message: "the node does not respond: its process is stopped or hangs, or it cannot be reached",
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
		// A new connection starts without gRPC's own backoff, so that only watch decides when to retry. If a process
		// closes the connections, the connection is not replaced, because gRPC's growing backoff is then useful.
		n.replace(cc)
	}
	return delivered, fresh, e
}

// pollWhenAsked requests the status when triggered, every RetryMax while a caller waits for an active node, and
// every ProbeInterval while operations are pending on this node.
func (n *node) pollWhenAsked(ctx context.Context) {
	for {
		wait := n.locator.opts.ProbeInterval
		searching := n.locator.searching()
		if searching {
			wait = n.locator.opts.RetryMax
		}
		timer := time.NewTimer(wait)
		select {
		case <-n.trigger:
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

// poll requests the status once. If the node does not respond within ProbeInterval, poll replaces the connection, which
// fails all pending calls on it.
func (n *node) poll(ctx context.Context) {
	asked := n.locator.observations(n)
	if asked == 0 {
		return // the first status arrives on the watch, which is being opened
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
