// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	// maxOwners limits the caches of queue owners and partition counts, and the queues that a producer tracks without
	// pending publishes.
	maxOwners = 10_000
	// maxPairs limits the pairs of a fleet that a client connects to.
	maxPairs = 1024
	// maxSingleNodes limits the nodes that a client sends direct requests to and that belong to none of its pairs.
	maxSingleNodes = 1024
)

// pairConn is the part of a client that belongs to one pair: its connections and its producer identities.
type pairConn struct {
	locator *locator

	mu         sync.Mutex   // guards sequencers
	sequencers []*sequencer // idle producer identities for transactions and administrative calls
}

func (p *pairConn) takeSequencer() *sequencer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.sequencers); n > 0 {
		s := p.sequencers[n-1]
		p.sequencers = p.sequencers[:n-1]
		return s
	}
	return newSequencer()
}

func (p *pairConn) returnSequencer(s *sequencer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sequencers = append(p.sequencers, s)
}

// owners is the cache of the pairs that own queues, as reported by NOT_OWNER. It also contains the connections to
// these pairs.
type owners struct {
	home  *pairConn
	open  func(addresses []string) (*pairConn, error) // connects to another pair
	known atomic.Bool                                 // a node has returned NOT_OWNER; if not, the cache is empty

	mu      sync.Mutex           // guards the fields below
	entries map[string]owner     // by queue, and by xidKey
	pairs   map[string]*pairConn // by name of the pair
	single  map[string]*locator  // nodes that are used only for direct requests, by address
}

type owner struct {
	pair  *pairConn
	epoch uint64 // ownership epoch
}

func newOwners(home *pairConn, open func([]string) (*pairConn, error)) *owners {
	return &owners{home: home, open: open, entries: make(map[string]owner), pairs: make(map[string]*pairConn)}
}

// of returns the pair that owns a queue, or the home pair if the owner is not known.
func (o *owners) of(queue string) *pairConn {
	pair, _ := o.find(queue)
	return pair
}

func (o *owners) find(queue string) (pair *pairConn, known bool) {
	if !o.known.Load() {
		return o.home, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if found, ok := o.entries[queue]; ok {
		return found.pair, true
	}
	return o.home, false
}

// learn records a NOT_OWNER response of the pair from, and returns the pair to which requests for the queue must be
// sent. An entry with a higher epoch is retained, unless it names the pair that responded.
func (o *owners) learn(from *pairConn, n *pb.NotOwner) (*pairConn, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	pair, err := o.pair(from, n)
	if err != nil {
		return nil, err
	}
	o.known.Store(true)
	if old, ok := o.entries[n.GetQueue()]; ok && old.epoch > n.GetEpoch() && old.pair != from {
		return old.pair, nil
	}
	o.put(n.GetQueue(), owner{pair, n.GetEpoch()})
	return pair, nil
}

// put adds an entry. If the cache is full, it removes an arbitrary other entry. mu is held.
func (o *owners) put(key string, value owner) {
	if _, ok := o.entries[key]; !ok && len(o.entries) >= maxOwners {
		for other := range o.entries {
			delete(o.entries, other)
			break
		}
	}
	o.entries[key] = value
}

// pair returns the connection to the pair that n names, and opens it on first use. mu is held.
//
// A node never names its own pair. If from is the home pair, the named pair is therefore another one, although the
// addresses of the client may contain nodes of both.
func (o *owners) pair(from *pairConn, n *pb.NotOwner) (*pairConn, error) {
	known := o.pairs[n.GetPair()]
	if known == nil && o.home.locator.hasAny(n.GetAddresses()) {
		known = o.home
	}
	if known == o.home && from == o.home {
		known = nil
	}
	switch {
	case known != nil:
		known.locator.learnAddresses(n.GetAddresses())
	case len(o.pairs) >= maxPairs:
		return nil, fmt.Errorf("%w: more than %d pairs", ErrLimit, maxPairs)
	default:
		var err error
		if known, err = o.open(n.GetAddresses()); err != nil {
			return nil, err
		}
	}
	o.pairs[n.GetPair()] = known
	return known, nil
}

// named returns the pair with the given name and addresses, which the home pair has reported.
func (o *owners) named(pair string, addresses []string) (*pairConn, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.pair(o.home, &pb.NotOwner{Pair: pair, Addresses: addresses})
}

// unavailable removes the entries of a pair other than the home pair, except those of prepared transactions, if the
// pair has no active node: it may have left the fleet. The next request for such a queue is sent to the home pair,
// which returns the present owner.
func (o *owners) unavailable(pair *pairConn) {
	if pair == o.home {
		return
	}
	if t, _ := pair.locator.state(); t != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.entries, func(key string, value owner) bool {
		return value.pair == pair && !strings.HasPrefix(key, xidKey(""))
	})
}

// xidKey returns the key under which the cache contains the pair of a prepared transaction. It is not a valid name of a
// queue.
func xidKey(xid string) string { return "\x00" + xid }

// prepared records the pair of a prepared transaction.
func (o *owners) prepared(xid string, pair *pairConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if pair == o.home {
		delete(o.entries, xidKey(xid)) // of an earlier attempt at another pair
		return
	}
	o.put(xidKey(xid), owner{pair: pair})
}

// close closes the connections to the pairs other than the home pair, and to single nodes.
func (o *owners) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range o.single {
		l.close()
	}
	for _, pair := range o.pairs {
		if pair != o.home {
			pair.locator.close()
		}
	}
}

// node returns the node with the given address. A node that belongs to none of the pairs that the client uses gets a
// separate connection, and does not become a node of a pair.
func (c *Client) node(address string) (*node, error) {
	o := c.owners
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, l := range o.locators() {
		if l.hasAny([]string{address}) {
			return l.node(address)
		}
	}
	if err := checkAddress(address); err != nil {
		return nil, err
	}
	if len(o.single) >= maxSingleNodes {
		return nil, fmt.Errorf("%w: more than %d nodes that are not part of the pair", ErrLimit, maxSingleNodes)
	}
	opts := c.opts
	opts.Addresses, opts.FixedAddresses = []string{address}, true
	opts.RetryMax = max(opts.RetryMax, opts.ProbeInterval) // other nodes may be active
	l, err := newLocator(opts)
	if err != nil {
		return nil, err
	}
	if err := c.runLocator(l); err != nil {
		return nil, err
	}
	if o.single == nil {
		o.single = make(map[string]*locator)
	}
	o.single[address] = l
	return l.node(address)
}

// locators returns all locators, that of the home pair first. mu is held.
func (o *owners) locators() []*locator {
	list := []*locator{o.home.locator}
	for _, pair := range o.pairs {
		list = append(list, pair.locator)
	}
	return slices.AppendSeq(list, maps.Values(o.single))
}

// runLocator starts a locator, or closes it if the client is closed.
func (c *Client) runLocator(l *locator) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		l.close()
		return ErrClosed
	}
	c.start(l)
	return nil
}

// openPair connects to another pair, with the options of the client.
func (c *Client) openPair(addresses []string) (*pairConn, error) {
	o := c.opts
	o.Addresses = nil
	loc, err := newLocator(o)
	if err != nil {
		return nil, err
	}
	err = fmt.Errorf("%w: no addresses", ErrInvalid)
	for _, a := range addresses {
		if _, failed := loc.node(a); failed != nil {
			err = failed
		}
	}
	if loc.isEmpty() {
		return nil, err
	}
	if err := c.runLocator(loc); err != nil {
		return nil, err
	}
	return &pairConn{locator: loc}, nil
}

// path is the sequence of pairs that a request is sent to.
type path struct {
	client *Client
	pair   *pairConn // where the next attempt is sent
	// visited are the pairs that have returned NOT_OWNER since the last response of another kind. before is the last of
	// these responses.
	visited []*pairConn
	before  *Error
	round   error // describes the last two of these responses; nil if there was only one
	// moved reports whether the last response has moved the request to a pair that was not visited, so that it can be
	// repeated immediately.
	moved bool
}

func (c *Client) pathTo(pair *pairConn) path { return path{client: c, pair: pair} }

// follow processes an error. After NOT_OWNER, the next attempt is sent to the owner. d records the attempts; it is nil
// if they need not be recorded. If the request cannot be sent to the owner, the returned error is final. If the
// previous response was also NOT_OWNER, the returned error describes both responses.
func (w *path) follow(e *Error, d *attempts) *Error {
	w.moved = false
	switch {
	case e.notOwner == nil:
		return e
	case d != nil && d.move != nil && d.unknown && !e.settled:
		return e.refused() // an earlier attempt may be committed by the first pair
	case w.client.opts.FixedAddresses:
		return e.refused()
	}
	next, err := w.client.owners.learn(w.pair, e.notOwner)
	if err != nil {
		final := e.refused()
		final.Message += "; " + err.Error()
		return final
	}
	if d != nil && e.settled {
		d.answered()
	}
	if d != nil && d.move != nil && (next != w.pair || e.settled) {
		d.move(next)
	}
	if w.before != nil {
		e = circular(w.before, e)
		w.round = e
	}
	w.before = e
	w.visited = append(w.visited, w.pair)
	w.pair, w.moved = next, !slices.Contains(w.visited, next)
	if !w.moved {
		w.visited = w.visited[:0]
	}
	return e
}

// progress records a response other than NOT_OWNER.
func (w *path) progress() { w.visited, w.before, w.round = nil, nil, nil }

// circular returns an error that describes two NOT_OWNER responses.
func circular(before, e *Error) *Error {
	both := *e
	both.Message = fmt.Sprintf("%s names pair %s as the owner of queue %s, and %s names pair %s", e.Address,
		e.notOwner.GetPair(), e.notOwner.GetQueue(), before.Address, before.notOwner.GetPair())
	return &both
}

// giveUpAt returns the error of an operation that ends because of cause while it is sent to the pair. If the pair has
// no active node, giveUpAt also removes its entries from the cache of owners: see unavailable.
func (c *Client) giveUpAt(pair *pairConn, op string, cause, last error, unknown bool) error {
	c.owners.unavailable(pair)
	return pair.locator.giveUp(op, cause, last, unknown)
}
