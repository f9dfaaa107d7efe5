// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// locator tracks the nodes of a pair, or of the pairs of two sites, and which of them is active. Until it is closed,
// only three events change the target: the status report of a node (observe), a lost connection (lost), and the report
// that a pair was removed from its fleet (remove). Any other failed call only triggers a poll of the nodes (askNow),
// so that an error of one call does not affect other calls.
type locator struct {
	opts    Options
	newNode chan *node // added nodes, which run starts to watch

	mu      sync.Mutex // guards the fields below and some fields of node
	nodes   []*node
	target  *target       // nil while no node is known to be active
	changed chan struct{} // closed and replaced when target changes
	waiters int           // callers that wait for a target
	pairs   pairs
	closed  bool

	answered bool // a node has responded since Open
}

// target is a node that is active in one term and, with two sites, in one epoch. When the target ends, all contexts
// bound to it are canceled. If the node rejects the credentials of the client, the target ends ProbeInterval later.
type target struct {
	node    *node
	term    uint64
	epoch   uint64
	lineage string        // empty without sites
	pairID  string        // empty for a standalone node
	lossy   uint64        // last epoch that began with an unplanned promotion; 0 if there was none
	gone    chan struct{} // closed when the target ends

	mu    sync.Mutex // guards ended, bound
	ended bool
	bound map[*context.CancelFunc]struct{}
}

func newLocator(o Options) (*locator, error) {
	l := &locator{
		opts: o, newNode: make(chan *node, maxAddresses), changed: make(chan struct{}), pairs: newPairs(),
	}
	for _, a := range o.Addresses {
		if err := l.add(a); err != nil {
			l.close()
			return nil, err
		}
	}
	return l, nil
}

// add is like addLocked, and locks mu.
func (l *locator) add(address string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.addLocked(address)
}

// addLocked adds a node, which run then watches. It does nothing if the address is known, maxAddresses is reached, or
// the client is closed. mu is held.
func (l *locator) addLocked(address string) error {
	if l.closed || len(l.nodes) >= maxAddresses || l.find(address) != nil {
		return nil
	}
	cc, err := l.opts.dial(address)
	if err != nil {
		return err
	}
	n := &node{address: address, locator: l, cc: cc, trigger: make(chan struct{}, 1), again: make(chan struct{}, 1)}
	l.nodes = append(l.nodes, n)
	l.newNode <- n // never blocks: its capacity is maxAddresses
	return nil
}

// find returns the node with the given address, or nil. mu is held.
func (l *locator) find(address string) *node {
	i := slices.IndexFunc(l.nodes, func(n *node) bool { return n.address == address })
	if i < 0 {
		return nil
	}
	return l.nodes[i]
}

func (l *locator) node(address string) (*node, error) {
	if err := checkAddress(address); err != nil {
		return nil, err
	}
	if err := l.add(address); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, ErrClosed
	}
	if n := l.find(address); n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("%w: %s would be the %dth address, the limit is %d", ErrInvalid, address,
		maxAddresses+1, maxAddresses)
}

func (l *locator) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		select {
		case n := <-l.newNode:
			wg.Go(func() { n.watch(ctx) })
			wg.Go(func() { n.pollWhenAsked(ctx) })
		case <-ctx.Done():
			return
		}
	}
}

func (l *locator) close() {
	l.mu.Lock()
	l.closed = true
	l.setTarget(nil)
	nodes := slices.Clone(l.nodes)
	l.mu.Unlock()
	for _, n := range nodes {
		n.close()
	}
}

// wait returns the target. If there is no target, it waits for one until ctx ends. It returns ErrClosed after close,
// and an *Error earlier if the nodes reject the credentials of this client. With Options.FailFast, it returns
// errUnreachable if all nodes are known to be unreachable.
func (l *locator) wait(ctx context.Context) (*target, error) { return l.waitFor(ctx, l.opts.FailFast) }

// waitLong is like wait, but ignores FailFast. It is called by the background goroutines of producers and consumers.
func (l *locator) waitLong(ctx context.Context) (*target, error) { return l.waitFor(ctx, false) }

func (l *locator) waitFor(ctx context.Context, failFast bool) (*target, error) {
	for {
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			return nil, ErrClosed
		}
		if t := l.target; t != nil {
			l.mu.Unlock()
			return t, nil
		}
		if failFast && l.unreachable() {
			l.mu.Unlock()
			return nil, errUnreachable
		}
		refusal := l.refusal()
		if refusal != nil && !l.askAgain() {
			l.mu.Unlock()
			return nil, refusal
		}
		changed := l.changed
		l.waiters++
		l.mu.Unlock()
		l.askNow()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		l.mu.Lock()
		l.waiters--
		l.mu.Unlock()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// hasAny reports whether a node has one of the given addresses.
func (l *locator) hasAny(addresses []string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.ContainsFunc(addresses, func(a string) bool { return l.find(a) != nil })
}

func (l *locator) isEmpty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.nodes) == 0
}

// learnAddresses adds addresses that a node of another pair reports.
func (l *locator) learnAddresses(addresses []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range addresses {
		l.learnAddress(a)
	}
}

// giveUp returns the error of an operation that ends because of cause. last is the last failure; if it is nil, the
// error describes the nodes.
func (l *locator) giveUp(op string, cause, last error, unknown bool) error {
	var e *Error
	if errors.As(cause, &e) { // the nodes reject the credentials of this client
		return (&attempts{unknown: unknown}).refused(op, e)
	}
	if last == nil {
		last = l.explain()
	}
	return &opError{op: op, cause: cause, last: last, unknown: unknown}
}

func (l *locator) state() (*target, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.target, l.changed
}

func (l *locator) pause(ctx context.Context, t *target, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.gone:
	case <-ctx.Done():
	}
}

func (l *locator) failed(e *Error) {
	if e.removed() {
		l.remove(e.Address)
	}
	if !l.opts.FixedAddresses {
		l.mu.Lock()
		l.learnAddress(e.notActive.GetActiveAddress())
		if !l.opts.AnySite {
			for _, a := range e.notActive.GetPrimaryAddresses() {
				l.learnAddress(a)
			}
		}
		l.mu.Unlock()
	}
	l.askNow()
}

// remove records that the pair of a node was removed from its fleet. The node is not used until its status stream has
// ended, for example because its process was restarted.
func (l *locator) remove(address string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.find(address); n != nil {
		n.removed = true
		l.choose()
	}
}

func (l *locator) askNow() {
	l.mu.Lock()
	nodes := l.nodes[:len(l.nodes):len(l.nodes)]
	l.mu.Unlock()
	for _, n := range nodes {
		signal(n.trigger)
	}
}

func (l *locator) searching() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.target == nil && l.waiters > 0
}

// observe records the status of a node. asked is the number of observations when a poll was started: if a newer
// observation arrived before the response of the poll, the response is discarded. If asked is 0, the status is
// always recorded.
func (l *locator) observe(n *node, st *pb.GetStatusResponse, asked uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if asked != 0 && n.observed != asked {
		return
	}
	n.observed++
	n.role, n.term, n.pairID = st.GetRole(), st.GetPair().GetTerm(), st.GetPair().GetPairId()
	n.reason, n.err, n.refused, n.asking = st.GetReason(), nil, time.Time{}, false
	n.site = st.GetSite()
	n.names = ""
	inSync := uint32(0)
	for _, other := range st.GetPair().GetNodes() {
		if other.GetInSync() {
			inSync++
		}
		if other.GetActive() && other.GetNodeId() != st.GetNode().GetNodeId() {
			n.names = other.GetAddress()
		}
	}
	n.short = inSync < st.GetPair().GetMinInSync()
	l.answered = true
	l.choose()
	l.learn()
}

func (l *locator) isShort(n *node) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return n.short
}

// lost records that the connection to a node broke: the role is unknown until the node reports it again. The
// parameter again means that the node rejected the token and is retried immediately with a newer token.
func (l *locator) lost(n *node, err error, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n.observed++
	n.role, n.reason, n.err, n.removed = pb.Role_ROLE_UNSPECIFIED, "", err, false
	if t := l.target; t != nil && t.node == n && refuses(err) {
		// The node still responds to pending calls, for example to the call that revoked the rights of this client.
		l.target = nil
		l.wake()
		time.AfterFunc(l.opts.ProbeInterval, t.end)
	}
	l.choose()
	l.learn()
	n.refused, n.asking = time.Time{}, again
	if refuses(err) && !again {
		n.refused = time.Now()
	}
	if l.unreachable() || l.refusal() != nil {
		l.wake() // waiting calls fail
	}
}

func (l *locator) observations(n *node) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return n.observed
}

// choose sets the target to the node that serves in the highest term, and among two sites in the highest epoch. A
// blocked node is chosen only if no other node is available. mu is held.
func (l *locator) choose() {
	l.pairs.record(l.nodes)
	var best *node
	for _, n := range l.nodes {
		if n.rank() == 0 || !l.usable(n) {
			continue
		}
		if best == nil || l.better(n, best) {
			best = n
		}
	}
	if best == nil {
		l.setTarget(nil)
		return
	}
	epoch := best.site.GetEpoch()
	if t := l.target; t == nil || t.node != best || t.term != best.term || t.epoch != epoch {
		l.setTarget(&target{
			node: best, term: best.term, epoch: epoch, lineage: best.site.GetLineage(), lossy: best.site.GetLossyEpoch(),
			pairID: best.pairID, gone: make(chan struct{}), bound: make(map[*context.CancelFunc]struct{}),
		})
	}
}

// setTarget replaces the target and wakes all waiting calls. mu is held.
func (l *locator) setTarget(t *target) {
	if l.target == t && !l.closed {
		return
	}
	if l.target != nil {
		l.target.end()
	}
	l.target = t
	l.wake()
}

// wake notifies the goroutines that wait for a change of the target. mu is held.
func (l *locator) wake() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// nodeErrors describes the last status of each node. It wraps the errors of failed connections and of replicas.
type nodeErrors struct {
	text   string
	causes []error
}

func (e *nodeErrors) Error() string   { return e.text }
func (e *nodeErrors) Unwrap() []error { return e.causes }

// explain returns the last status of each node as an error.
func (l *locator) explain() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var parts []string
	var causes []error
	for _, n := range l.nodes {
		s := n.address + ": "
		var e *Error
		switch {
		case errors.As(n.err, &e):
			s = e.Error() // includes the address
			if e.unreached {
				causes = append(causes, e)
			}
		case n.err != nil:
			s += n.err.Error()
		case n.role == pb.Role_ROLE_UNSPECIFIED:
			s += "no response yet"
		case n.removed:
			s += "the pair was removed from its fleet"
		case n.isReplica():
			e = n.replicaError()
			s += e.Message
			causes = append(causes, e)
		default:
			s += roleName(n.role) + l.supersededBy(n)
			if n.reason != "" {
				s += ", " + n.reason
			}
		}
		parts = append(parts, s)
	}
	return &nodeErrors{strings.Join(parts, "; "), causes}
}

func (t *target) end() {
	t.mu.Lock()
	t.ended = true
	bound := t.bound
	t.bound = nil
	t.mu.Unlock()
	close(t.gone)
	for cancel := range bound {
		(*cancel)()
	}
}

// bind returns a context that is also canceled when the target ends. The returned function releases the context and
// must be called at least once.
func (t *target) bind(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	key := &cancel
	t.mu.Lock()
	ended := t.ended
	if !ended {
		t.bound[key] = struct{}{}
	}
	t.mu.Unlock()
	if ended {
		cancel()
	}
	t.node.users.Add(1)
	return ctx, sync.OnceFunc(func() {
		t.node.users.Add(-1)
		t.mu.Lock()
		delete(t.bound, key)
		t.mu.Unlock()
		cancel()
	})
}

func (t *target) conn() *grpc.ClientConn { return t.node.conn() }
