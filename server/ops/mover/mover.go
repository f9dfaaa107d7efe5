// SPDX-License-Identifier: Apache-2.0

// Package mover moves queues between the pairs of a fleet (decision 0038).
//
// The active of the target performs each move. The log of the target contains its state, so that a restarted node, or
// the next active, continues:
//
//  1. An intent in the directory requests the move (fleet.Directory.BeginMove). The target commits the start of the
//     import.
//  2. The target pulls the messages from the active of the source, in several passes, and compares digests of both
//     copies. In the meantime, the source serves the queues.
//  3. After a short pass, or after the maximum number of passes, the source fences the queues. The target pulls the
//     rest of the messages and the state, compares the digests of these, and takes the queues. If this is not finished
//     within fenceLimit, the target cancels the move.
//  4. After the take, the target changes the directory, the source deletes its copy, and the target forgets the move.
//     After a cancellation, the source removes its fence, the target deletes the intent, and forgets the move.
//
// If an operator has removed the target as lost, the active of the source ends the move (decision 0043).
//
// Every step can be repeated. A node executes its moves one after another, so that the epochs of imports ascend. If a
// move fails temporarily, for example because its source does not respond, the node continues with the next move, and
// tries the failed move again later.
package mover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/server/peerclient"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// fenceLimit is the maximum time between the request for the fence and the take.
	fenceLimit = 10 * time.Second
	// shortPass is the maximum duration of a pass after which the queues are fenced.
	shortPass = 20 * time.Millisecond
	maxPasses = 8
	// pacedPasses is the number of passes in which both pairs slow down the copy in favor of their clients. Later
	// passes are faster.
	pacedPasses = 2
	// preparedPasses is the maximum number of passes after PrepareFence has written a checkpoint.
	preparedPasses = 3
	// retryInterval is the interval between attempts after a failure, and retryFenced that while the queues are fenced.
	retryInterval = time.Second
	retryFenced   = 50 * time.Millisecond
	// maxEnded is the maximum number of ended moves in the response to ListMoves.
	maxEnded = 100
)

// Member is the membership of the pair in the fleet.
type Member interface {
	// Directory returns the directory, or nil until the node belongs to a pair.
	Directory() *fleet.Directory
	SetBlocked(f func(queue string) bool)
}

// Options configures New. All fields are required, unless stated otherwise.
type Options struct {
	// Pair is the name of this pair.
	Pair    string
	Member  Member
	Store   *store.Store
	Serving *session.Current
	// Dial are the options of connections to other pairs.
	Dial []grpc.DialOption
	// Supported returns an error if a node of this pair runs a release that does not support moves.
	Supported func() error
	// Step is called before each step of a move that this node performs. If it returns an error, the step fails. It is
	// for tests, and optional.
	Step func(ctx context.Context, step string) error
	// Paused is called with the pause of a move to this pair after the pair has taken the queues. Optional.
	Paused func(time.Duration)
	Logger *zap.Logger
}

// Manager moves queues to this pair, and serves the targets of moves of queues of this pair. A Manager is safe for
// concurrent use. On a nil *Manager, which stands for a node without a fleet, Activate, Deactivate, Run and Stats
// have no effect; the other methods must not be called.
type Manager struct {
	o   Options
	log *zap.Logger

	mu       sync.Mutex // guards the fields below
	primary  *replication.Primary
	wake     chan struct{} // closed and replaced after a change of primary, or a new request
	progress map[uint64]*Progress
	// open contains the moves for which the source is known to have no fence.
	open map[uint64]bool
	// lost contains the errors of the last attempts to end moves from this pair to pairs that were removed.
	lost   map[uint64]error
	seen   map[watched]time.Time // see Stats
	totals totals
}

// Phase is the phase of a move, as known to the target.
type Phase int

// Phases of a move.
const (
	PhaseUnknown  Phase = iota
	PhaseWaiting        // requested; the import has not begun
	PhaseCopying        // the source serves the queues
	PhaseFenced         // the fence was requested
	PhaseTaken          // this pair serves the queues; the source may still have its copy
	PhaseCanceled       // the source may still have its fence
	PhaseDone           // ended, moved
	PhaseNotMoved       // ended, not moved
)

// Progress is the state of a move.
type Progress struct {
	fleet.Move

	Phase Phase
	// CopiedBytes is the size of the messages that were copied since this node began or resumed the move. RemainingBytes
	// is the approximate size of the messages that are still to be copied.
	CopiedBytes, RemainingBytes uint64
	Passes                      int
	// Err is the error of the last attempt.
	Err error
	// Reason is the reason for the cancellation.
	Reason error
	// Pause is the time between the request for the fence and the take. It is 0 before the take, and if this node did not
	// perform both.
	Pause time.Duration
}

// New returns a Manager. The caller must call Run.
func New(o Options) *Manager {
	m := &Manager{
		o: o, log: o.Logger, wake: make(chan struct{}), progress: map[uint64]*Progress{}, open: map[uint64]bool{},
		lost: map[uint64]error{},
	}
	if m.o.Step == nil {
		m.o.Step = func(context.Context, string) error { return nil }
	}
	if m.o.Paused == nil {
		m.o.Paused = func(time.Duration) {}
	}
	o.Member.SetBlocked(m.blocked)
	return m
}

// Activate records that this node is the active of its pair, with p as its primary.
func (m *Manager) Activate(p *replication.Primary) { m.use(p) }

// Deactivate records that this node is no longer the active.
func (m *Manager) Deactivate() { m.use(nil) }

func (m *Manager) use(p *replication.Primary) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.primary == p {
		return
	}
	m.primary = p
	m.progress, m.open, m.lost = map[uint64]*Progress{}, map[uint64]bool{}, map[uint64]error{}
	m.notifyLocked()
}

func (m *Manager) notifyLocked() {
	close(m.wake)
	m.wake = make(chan struct{})
}

func (m *Manager) notify() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.notifyLocked()
}

// Run performs the moves to this pair, and ends moves from it to removed pairs, until ctx ends. It does so only while
// this node is the active and the role of the site permits changes of queues.
func (m *Manager) Run(ctx context.Context) {
	if m == nil {
		return
	}
	c := pairs{peerclient.NewRemotes(m.o.Dial...)}
	defer c.Close()
	changed, cancel := query.WatchFleet(m.o.Store)
	defer cancel()
	for {
		m.mu.Lock()
		p, wake := m.primary, m.wake
		m.mu.Unlock()
		var directory <-chan struct{}
		again := false
		if d := m.o.Member.Directory(); d != nil && p != nil && m.serves() {
			directory = d.Changed()
			w := &worker{m: m, p: p, d: d, pairs: c, log: m.log}
			again = w.pass(ctx)
		}
		retry := time.NewTimer(retryInterval)
		if !again {
			retry.Stop()
		}
		select {
		case <-wake:
		case <-changed:
		case <-directory:
		case <-retry.C:
		case <-ctx.Done():
		}
		if retry.Stop(); ctx.Err() != nil {
			return
		}
	}
}

// serves reports whether the role of the site permits changes of queues.
func (m *Manager) serves() bool {
	role := m.o.Store.Site().Role
	return role == queue.SiteNone || role == queue.SitePrimary
}

// update calls f to change the progress of a move, which it adds if necessary. It updates the totals, and removes old
// ended moves.
func (m *Manager) update(move fleet.Move, f func(*Progress)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.progress[move.Epoch]
	if p == nil {
		p = &Progress{Move: move}
		m.progress[move.Epoch] = p
	}
	if len(move.Queues) > 0 {
		p.Queues = move.Queues
	}
	if move.From != "" {
		p.From = move.From
	}
	p.To = m.o.Pair
	before := *p
	f(p)
	m.totals.count(&before, p)
	m.trimLocked()
}

// trimLocked removes ended moves, oldest first, until maxEnded remain.
func (m *Manager) trimLocked() {
	var ended []uint64
	for epoch, p := range m.progress {
		if p.Phase == PhaseDone || p.Phase == PhaseNotMoved {
			ended = append(ended, epoch)
		}
	}
	slices.Sort(ended)
	for _, epoch := range ended[:max(0, len(ended)-maxEnded)] {
		delete(m.progress, epoch)
	}
}

func (m *Manager) setOpen(epoch uint64, open bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if open {
		m.open[epoch] = true
	} else {
		delete(m.open, epoch)
	}
}

func (m *Manager) isOpen(epoch uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open[epoch]
}

// blocked reports whether a queue moves to this pair and may be fenced at the source.
func (m *Manager) blocked(name string) bool {
	d := m.o.Member.Directory()
	if d == nil {
		return false
	}
	for _, intent := range d.Moves() {
		if intent.To != m.o.Pair || !slices.Contains(intent.Queues, name) {
			continue
		}
		move, begun := query.Move(m.o.Store, intent.Epoch)
		if begun && move.Pair != "" && move.State != queue.MoveTaken && !m.isOpen(intent.Epoch) {
			return true
		}
	}
	return false
}

// Moves returns the unfinished moves of the fleet, in the order of their epochs. It includes the last moves to this
// pair that have ended since this node became the active. current is false if moves to other pairs may be missing.
func (m *Manager) Moves() (moves []Progress, current bool) {
	all := map[uint64]Progress{}
	if d := m.o.Member.Directory(); d != nil {
		current = d.Status().Current
		for _, intent := range d.Moves() {
			all[intent.Epoch] = Progress{Move: intent}
		}
	}
	m.mu.Lock()
	for epoch, p := range m.progress {
		all[epoch] = *p
	}
	m.mu.Unlock()
	for _, p := range all {
		moves = append(moves, p)
	}
	slices.SortFunc(moves, func(a, b Progress) int {
		if a.Epoch < b.Epoch {
			return -1
		}
		return 1
	})
	return moves, current
}

// active returns the primary and the directory. It returns an error if this node is not the active or has no
// directory.
func (m *Manager) active() (*replication.Primary, *fleet.Directory, error) {
	session, err := m.o.Serving.Session()
	if err != nil {
		return nil, nil, err
	}
	d := m.o.Member.Directory()
	if d == nil {
		return nil, nil, fmt.Errorf("%w: not loaded", fleet.ErrUnavailable)
	}
	return session.Primary, d, nil
}

// Begin begins a move of queues, or of the queues of a placement group, to this pair. The errors are those of
// fleet.Directory.BeginMove and Options.Supported, the error of a node that is not the active, and apierror.ErrInvalid.
func (m *Manager) Begin(ctx context.Context, queues []string, group string) (fleet.Move, error) {
	_, d, err := m.active()
	if err != nil {
		return fleet.Move{}, err
	}
	if (len(queues) == 0) == (group == "") {
		return fleet.Move{}, fmt.Errorf("%w: either queues or a placement group is required", apierror.ErrInvalid)
	}
	if err := m.o.Supported(); err != nil {
		return fleet.Move{}, err
	}
	if group != "" {
		if queues = d.Group(group); len(queues) == 0 {
			return fleet.Move{}, fmt.Errorf("%w: placement group %q has no queues", apierror.ErrInvalid, group)
		}
	}
	move, err := d.BeginMove(ctx, queues)
	if err != nil {
		return fleet.Move{}, fmt.Errorf("fleet: %w", err)
	}
	m.update(move, func(p *Progress) { p.Phase = PhaseWaiting })
	m.log.Info("move of queues requested", zap.Uint64("epoch", move.Epoch), zap.String("from", move.From),
		zap.Strings("queues", move.Queues))
	m.notify()
	return move, nil
}

var errCanceled = errors.New("canceled by an operator")

// Cancel commits the cancellation of a move to this pair. The move then ends in the background. Cancel returns an error
// that wraps apierror.ErrFleetState if there is no such move, or if the queues were taken.
func (m *Manager) Cancel(ctx context.Context, epoch uint64) error {
	p, d, err := m.active()
	if err != nil {
		return err
	}
	intended := slices.ContainsFunc(d.Moves(), func(i fleet.Move) bool { return i.Epoch == epoch && i.To == m.o.Pair })
	move, begun := query.Move(m.o.Store, epoch)
	switch {
	case !intended && !begun, begun && move.State == queue.MoveFenced:
		return fmt.Errorf("%w: no move to pair %s has the epoch %d", apierror.ErrFleetState, m.o.Pair, epoch)
	case begun && move.State == queue.MoveTaken:
		return fmt.Errorf("%w: pair %s has already taken the queues", apierror.ErrFleetState, m.o.Pair)
	}
	if err := commit(ctx, p, func(b *txn.Builder) { b.CancelImport(epoch) }); err != nil {
		return fmt.Errorf("cancel move %d: %w", epoch, err)
	}
	m.canceled(fleet.Move{Epoch: epoch}, errCanceled)
	m.notify()
	return nil
}

// canceled records a cancellation, and its reason unless a reason is already recorded. The move may have ended in the
// meantime.
func (m *Manager) canceled(move fleet.Move, reason error) {
	m.update(move, func(p *Progress) {
		if p.Phase != PhaseNotMoved {
			p.Phase = PhaseCanceled
		}
		if p.Reason == nil {
			p.Reason = reason
		}
	})
}

func commit(ctx context.Context, p *replication.Primary, fill func(*txn.Builder)) error {
	_, err := txn.Propose(ctx, p, time.Now(), fill)
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}
