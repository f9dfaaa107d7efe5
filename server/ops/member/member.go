// SPDX-License-Identifier: Apache-2.0

// Package member makes this pair a member of a fleet. It connects the log, which determines the membership and the
// queues of the pair, with the directory in etcd (package fleet), which determines the owner of each queue name.
//
// # Membership
//
// The setting fleet.pair makes the active join: it registers the pair, and then commits the membership (txn.OpFleet).
// After that, the pair remains a member, even if the setting is removed, until Leave.
//
// After Leave, the setting has no effect until the node is restarted. If Leave is interrupted between the directory
// and the log, the pair remains a member without a registration: it creates no queues, and does not register again.
// The operator calls Leave again, or Rebuild to remain.
//
// An active with the setting creates no queues before the pair is a member.
//
// # Creation and deletion
//
// The name of a queue is assigned first; then the queue is committed with its ownership epoch. A deletion is
// committed first; then the name is released. If the second step does not happen, Reconcile adapts the directory
// later.
//
// # Sites
//
// While the pair is a replica, or a stopped primary, the Manager only keeps the copy of the directory current.
package member

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Options configures New. All fields are required, unless stated otherwise.
type Options struct {
	// Pair is the name of this pair: fleet.pair.
	Pair string
	// Client is the client of etcd. It must not be closed before Run has returned.
	Client *clientv3.Client
	// Prefix is the prefix of the keys. Optional.
	Prefix string
	// Labels are the labels of this pair. Optional.
	Labels map[string]string
	Store  *store.Store
	// Addresses returns the addresses of the nodes of this pair.
	Addresses func() []string
	// Load returns the current load of this pair. It is called from one goroutine at a time.
	Load func() fleet.Load
	// Capacity returns the size of the filesystem of the store, in bytes; 0 if it is unknown.
	Capacity func() uint64
	// Supported returns an error if a node of this pair runs a release that does not support fleets.
	Supported func() error
	// NotActive returns the error that clients receive from a node that is not active.
	NotActive func() error
	// Changed is called after this node has committed a change of the membership, and after a change of Status.Err or
	// Status.Conflicts. Optional.
	Changed func()
	Logger  *zap.Logger

	requestTimeout, loadTTL, reconcileInterval, checkInterval time.Duration // for tests; 0: the defaults
}

// Manager connects the store of a node with the directory of a fleet. Most methods accept a nil *Manager, which
// stands for a node without a fleet. A Manager is safe for concurrent use.
type Manager struct {
	o         Options
	log       *zap.Logger
	creations creations
	// working is held during changes of the membership and of all entries of this pair. Its capacity is 1.
	working chan struct{}
	// due is signaled if Reconcile must be called soon, and loadDue if the load must be published again.
	due, loadDue chan struct{}
	releases     releases

	mu        sync.Mutex // guards the fields below
	directory *fleet.Directory
	primary   *replication.Primary
	term      uint64        // of primary; 0 without one
	wake      chan struct{} // closed and replaced when primary or directory changes
	ready     chan struct{} // closed when the pair is registered in this term; replaced when primary changes
	left      bool          // Leave has ended the registration in this term
	// member reports whether the pair was a member at any time since the start of this process. If it is no longer a
	// member, it has left.
	member    bool
	err       error // of the last attempt to join, or to update the directory
	conflicts []fleet.Conflict
	blocked   func(queue string) bool // see SetBlocked
	// reconciled is the time of the last successful Reconcile in this term.
	reconciled time.Time
}

// New returns a Manager. The caller must call Run. New returns an error for invalid options, such as the name of the
// pair.
func New(o Options) (*Manager, error) {
	m := &Manager{
		o: o, log: o.Logger, working: make(chan struct{}, 1), due: make(chan struct{}, 1),
		loadDue: make(chan struct{}, 1), wake: make(chan struct{}),
		ready:     make(chan struct{}),
		creations: newCreations(), releases: releases{wake: make(chan struct{}, 1)},
	}
	if m.o.Changed == nil {
		m.o.Changed = func() {}
	}
	m.o.reconcileInterval = cmp.Or(o.reconcileInterval, reconcileInterval)
	m.o.checkInterval = cmp.Or(o.checkInterval, checkInterval)
	m.o.loadTTL = cmp.Or(o.loadTTL, fleet.DefaultLoadTTL)
	if _, err := m.newDirectory(uuid.Max); err != nil { // validates the options
		return nil, err
	}
	m.note()
	return m, nil
}

func (m *Manager) newDirectory(pairID uuid.UUID) (*fleet.Directory, error) {
	d, err := fleet.New(fleet.Options{
		Client: m.o.Client, Prefix: m.o.Prefix, Pair: m.o.Pair, PairID: pairID.String(), State: m.pairState, Moving: m.moving,
		RequestTimeout: m.o.requestTimeout, LoadTTL: m.o.loadTTL, Logger: m.log,
	})
	if err != nil {
		return nil, fmt.Errorf("fleet: %w", err)
	}
	return d, nil
}

// open returns the directory, and creates it if necessary. It returns nil while the node does not belong to a pair.
func (m *Manager) open() *fleet.Directory {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := m.o.Store.Identity().PairID
	if m.directory != nil || id == uuid.Nil {
		return m.directory
	}
	d, err := m.newDirectory(id)
	if err != nil { // New has validated the options
		m.err = err
		return nil
	}
	m.directory = d
	m.notifyLocked()
	return d
}

func (m *Manager) notifyLocked() {
	close(m.wake)
	m.wake = make(chan struct{})
}

// Activate records that this node is the active of its pair, with p as its primary. All committed records must be
// applied.
func (m *Manager) Activate(p *replication.Primary) {
	if m == nil {
		return
	}
	m.open()
	m.use(p, p.Status().Term)
}

// Deactivate records that this node is no longer the active.
func (m *Manager) Deactivate() {
	if m == nil {
		return
	}
	m.use(nil, 0)
	m.releases.clear() // the next active calls Reconcile
}

func (m *Manager) use(p *replication.Primary, term uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.noteLocked()
	if m.primary != p {
		m.primary, m.term, m.left, m.err, m.conflicts = p, term, false, nil, nil
		m.ready, m.reconciled = make(chan struct{}), time.Time{}
		m.notifyLocked()
	}
}

// setReady permits creations in the term of p.
func (m *Manager) setReady(p *replication.Primary) {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.ready:
	default:
		if m.primary == p {
			close(m.ready)
		}
	}
}

// awaitReady waits until the pair is registered in the term of p. If the last attempt has failed, it returns the
// error of that attempt. If p is not the current primary, it returns fleet.ErrNotActive.
func (m *Manager) awaitReady(ctx context.Context, p *replication.Primary) (*fleet.Directory, error) {
	for {
		m.mu.Lock()
		current, d, ready, wake, err := m.primary, m.directory, m.ready, m.wake, m.err
		m.mu.Unlock()
		if current != p || d == nil {
			return nil, fleet.ErrNotActive
		}
		select {
		case <-ready:
			return d, nil
		default:
		}
		if err != nil {
			return nil, err
		}
		select {
		case <-ready:
		case <-wake:
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: the pair has not joined the fleet yet: %w", fleet.ErrUnavailable, ctx.Err())
		}
	}
}

// active returns the primary and the directory. On a node that is not the active, it returns the error of
// Options.NotActive.
func (m *Manager) active() (*replication.Primary, *fleet.Directory, error) {
	m.mu.Lock()
	p, d := m.primary, m.directory
	m.mu.Unlock()
	if p == nil || d == nil {
		return nil, nil, m.o.NotActive()
	}
	return p, d, nil
}

// Directory returns the directory. It returns nil without a fleet, and on a new node that does not belong to a pair
// yet.
func (m *Manager) Directory() *fleet.Directory {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.directory
}

// pairState returns the state of the pair for the directory.
func (m *Manager) pairState() fleet.PairState {
	var term uint64
	if m.serves() {
		m.mu.Lock()
		term = m.term
		m.mu.Unlock()
	}
	member := query.Fleet(m.o.Store)
	st := fleet.PairState{MaxEpoch: member.MaxEpoch, Term: term}
	if member.Member() {
		st.FleetID = member.ID.String()
	}
	return st
}

// serves reports whether the role of the site permits changes of queues.
func (m *Manager) serves() bool {
	role := m.o.Store.Site().Role
	return role == queue.SiteNone || role == queue.SitePrimary
}

// mismatch returns fleet.ErrOtherName if the log contains another name of this pair.
func (m *Manager) mismatch(st *queue.FleetState) error {
	if st.Member() && st.Pair != m.o.Pair {
		return fmt.Errorf("%w: %s, not %s", fleet.ErrOtherName, st.Pair, m.o.Pair)
	}
	return nil
}

// NotFound returns the error for a queue that this pair does not have. It is an *apierror.NotOwnerError if another
// pair owns the queue. It wraps txn.ErrQueueNotFound if no other pair owns it, and fleet.ErrUnavailable,
// fleet.ErrLost, fleet.ErrRestored or fleet.ErrRebuilding if the owner is unknown or cannot serve the queue. Without
// a fleet, it is txn.ErrQueueNotFound.
//
// The caller must have looked up the queue in the store before the call. If the result is not an
// *apierror.NotOwnerError, the caller must look it up again.
func (m *Manager) NotFound(queue string) error {
	if m == nil {
		return txn.ErrQueueNotFound
	}
	d := m.Directory()
	if d == nil {
		return fmt.Errorf("queue %q: %w: not loaded", queue, fleet.ErrUnavailable)
	}
	if epoch, pair, fenced := query.Fence(m.o.Store, queue); fenced {
		return notOwner(queue, fleet.Owner{Pair: pair, Addresses: d.PairAddresses(pair), Epoch: epoch})
	}
	if m.isBlocked(queue) {
		return fmt.Errorf("queue %q: %w: the queue is being moved to this pair", queue, fleet.ErrUnavailable)
	}
	owner, found, err := d.Owner(queue)
	switch {
	case err != nil:
		return fmt.Errorf("queue %q: %w", queue, unavailable(err))
	case !found:
		return txn.ErrQueueNotFound
	case owner.Pair == m.o.Pair || owner.Pair == query.Fleet(m.o.Store).Pair:
		// An outdated or restored copy may contain the owner before a move.
		if err := d.Status().Problem; err != nil {
			return fmt.Errorf("queue %q: %w", queue, unavailable(err))
		}
		return txn.ErrQueueNotFound
	}
	return notOwner(queue, owner)
}

// notOwner returns the error for a queue of another pair. A pair without addresses is not in the directory, for example
// after a restore; the error then wraps fleet.ErrUnavailable.
func notOwner(queue string, owner fleet.Owner) error {
	if len(owner.Addresses) == 0 {
		return fmt.Errorf("queue %q: %w: pair %s is not in the directory", queue, fleet.ErrUnavailable, owner.Pair)
	}
	return &apierror.NotOwnerError{Queue: queue, Pair: owner.Pair, Addresses: owner.Addresses, Epoch: owner.Epoch}
}

// unavailable converts an error of the directory to the error for a client. Unless the client must not retry the
// request, or the error is more specific, the result wraps fleet.ErrUnavailable.
func unavailable(err error) error {
	switch {
	case errors.Is(err, fleet.ErrUnavailable), errors.Is(err, fleet.ErrLost), errors.Is(err, fleet.ErrRestored),
		errors.Is(err, fleet.ErrRebuilding), errors.Is(err, fleet.ErrPartitions):
		return err
	case errors.Is(err, fleet.ErrInvalid):
		return fmt.Errorf("%w: %w", apierror.ErrInvalid, err)
	}
	return fmt.Errorf("%w: %w", fleet.ErrUnavailable, err)
}

// lock acquires a channel of capacity 1.
func lock(ctx context.Context, c chan struct{}) error {
	select {
	case c <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("another change of the fleet is in progress: %w", ctx.Err())
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Partitions returns the number of partitions of a queue, as stated by the copy of the directory; 0 if it is not
// partitioned, or not known to be.
func (m *Manager) Partitions(queue string) int {
	d := m.Directory()
	if d == nil {
		return 0
	}
	return d.Partitions(queue)
}
