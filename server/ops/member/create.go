// SPDX-License-Identifier: Apache-2.0

package member

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/query"
)

const (
	// maxCreations is the maximum number of creations in progress, including those that wait for another creation of
	// the same name, or for Rebuild or Leave.
	maxCreations = 4096
	// assignTimeout limits the time for the assignment of a name.
	assignTimeout = 10 * time.Second
)

// creations contains the creations in progress. For Reconcile, a creation begins before the name is assigned and ends
// after the outcome of the creation is known.
type creations struct {
	// gate has one unit per creation. Rebuild and Leave acquire all units.
	gate *semaphore.Weighted

	mu     sync.Mutex // guards the fields below
	byName map[string]*creation
	total  int
}

// creation contains the creations of one name.
type creation struct {
	turn chan struct{} // capacity 1
	n    int           // number of creations, including those that wait
}

func newCreations() creations {
	return creations{gate: semaphore.NewWeighted(maxCreations), byName: map[string]*creation{}}
}

// begin registers a creation, and waits until no other creation of the name is in progress. If the error is nil, the
// caller must call end.
func (c *creations) begin(ctx context.Context, name string) error {
	of, err := c.add(name)
	if err != nil {
		return err
	}
	if err := c.gate.Acquire(ctx, 1); err != nil {
		c.remove(name, of)
		return fmt.Errorf("create queue %q: %w: the fleet is being changed: %w", name, fleet.ErrUnavailable, err)
	}
	select {
	case of.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		c.gate.Release(1)
		c.remove(name, of)
		return fmt.Errorf("another creation of queue %q is in progress: %w", name, ctx.Err())
	}
}

func (c *creations) add(name string) (*creation, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.total >= maxCreations {
		return nil, fmt.Errorf("create queue %q: %w: %d queues are being created", name, fleet.ErrUnavailable, c.total)
	}
	of := c.byName[name]
	if of == nil {
		of = &creation{turn: make(chan struct{}, 1)}
		c.byName[name] = of
	}
	of.n++
	c.total++
	return of, nil
}

func (c *creations) end(name string) {
	c.mu.Lock()
	of := c.byName[name]
	c.mu.Unlock()
	<-of.turn
	c.gate.Release(1)
	c.remove(name, of)
}

func (c *creations) remove(name string, of *creation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of.n--
	c.total--
	if of.n == 0 {
		delete(c.byName, name)
	}
}

// exclude waits for all creations in progress. New creations wait until release is called.
func (c *creations) exclude(ctx context.Context) (release func(), _ error) {
	if err := c.gate.Acquire(ctx, maxCreations); err != nil {
		return nil, fmt.Errorf("wait for queues that are being created: %w", err)
	}
	return func() { c.gate.Release(maxCreations) }, nil
}

// inProgress reports whether a creation of the name is in progress.
func (c *creations) inProgress(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byName[name] != nil
}

// Create assigns the name of a new queue and, if this pair is the owner, calls commit with the ownership epoch of the
// queue. commit must commit the creation in the term of p. Even if ctx ends, it must not return before the outcome is
// known, or the creation can no longer be committed in that term. Concurrent creations of a name are executed one
// after another. Without a fleet, or if the queue exists, Create calls commit with the epoch 0.
//
// group is the placement group; if it is empty, the group is the tag of the name, if any.
//
// Create returns an *apierror.NotOwnerError if another pair owns the name, and the error of Options.NotActive if p is
// no longer the primary. Its other errors include those of commit, the context's error, fleet.ErrUnavailable,
// fleet.ErrLost, fleet.ErrRestored, fleet.ErrRebuilding, fleet.ErrPartitions and apierror.ErrInvalid.
func (m *Manager) Create(
	ctx context.Context, p *replication.Primary, queue, group string, commit func(epoch uint64) error,
) error {
	if m == nil {
		return commit(0)
	}
	if err := m.creations.begin(ctx, queue); err != nil {
		return err
	}
	defer m.creations.end(queue)
	if _, exists := query.OwnershipEpoch(m.o.Store, queue); exists { // a fenced queue is refused with txn.ErrMoved
		return commit(0)
	}
	owner, err := m.assign(ctx, p, queue, group)
	switch {
	case err != nil:
		return err
	case owner.Pair != m.o.Pair:
		return &apierror.NotOwnerError{Queue: queue, Pair: owner.Pair, Addresses: owner.Addresses, Epoch: owner.Epoch}
	}
	if err := commit(owner.Epoch); err != nil {
		m.failed(p, queue, owner.Epoch, err)
		return err
	}
	return nil
}

// assign returns the owner of a name. The caller may commit the creation through p under the epoch of the owner: if p
// is no longer the primary, the commit fails.
func (m *Manager) assign(ctx context.Context, p *replication.Primary, queue, group string) (fleet.Owner, error) {
	ctx, cancel := context.WithTimeout(ctx, assignTimeout)
	defer cancel()
	stop := cancelWhenStopped(p, cancel)
	defer stop()
	d, err := m.awaitReady(ctx, p)
	if err != nil {
		return fleet.Owner{}, m.assignError(p, err)
	}
	// Assign serializes its requests. While etcd does not respond, the creations wait here concurrently.
	if err := d.Await(ctx, func(s fleet.Status) bool { return s.Current }); err != nil {
		return fleet.Owner{}, m.assignError(p, fmt.Errorf("assign queue %q: %w: %w", queue, fleet.ErrUnavailable, err))
	}
	owner, err := d.Assign(ctx, queue, group)
	if err != nil {
		return fleet.Owner{}, m.assignError(p, err)
	}
	return owner, nil
}

func (m *Manager) assignError(p *replication.Primary, err error) error {
	select {
	case <-p.Stopped():
		return m.o.NotActive()
	default:
	}
	if errors.Is(err, fleet.ErrNotActive) {
		return m.o.NotActive()
	}
	return unavailable(err)
}

// cancelWhenStopped calls cancel when the role of p ends. The caller must call stop.
func cancelWhenStopped(p *replication.Primary, cancel func()) (stop func()) {
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-p.Stopped():
			cancel()
		case <-ended:
		}
	}()
	return func() {
		close(ended)
		<-done
	}
}

// failed releases the name of a queue that was not created. If the creation may still be committed, the entry
// remains.
func (m *Manager) failed(p *replication.Primary, queue string, epoch uint64, err error) {
	if errors.Is(err, replication.ErrOutcomeUnknown) {
		return
	}
	select {
	case <-p.Stopped(): // the record may be committed in a later term
		return
	default:
	}
	if current, exists := query.OwnershipEpoch(m.o.Store, queue); exists && current == epoch {
		return // commit has failed after the creation
	}
	m.Deleted(queue, epoch)
}
