// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/mutate"
)

const (
	// dialBackoffMin is short: only a refused dial proves that the process terminated.
	dialBackoffMin = 250 * time.Microsecond
	dialBackoffMax = 50 * time.Millisecond
	// While data is received, CheckSpace is called again after spaceCheckBytes or spaceCheckInterval.
	spaceCheckBytes    = 4 << 20
	spaceCheckInterval = 100 * time.Millisecond
)

// errStore marks failures of this node's store, which a reconnect cannot resolve.
var errStore = errors.New("this node's store")

var errSnapshot = errors.New("snapshot required")

// FollowerOptions configures StartFollower.
type FollowerOptions struct {
	// Store is the recovered store of the node. While the role runs, only the role appends to the store and applies.
	Store   *store.Store
	Dialer  Dialer
	Address string
	// CheckSpace, if not nil, returns an error if the disk has no space for this many more bytes of log or snapshot.
	// Such an error closes the connection and prevents new ones while it persists. CheckSpace is called before each
	// dial, and periodically while data is received.
	CheckSpace func(bytes int) error
	// DiscardedRange identifies the records discarded by the pair's last forced failover, if any.
	DiscardedRange DiscardedRange
	// Events, Logger, Meter and Tracer are optional.
	Events func(Event)
	Logger *zap.Logger
	Meter  Meter
	Tracer Tracer
	Tuning
}

// Follower is the standby role: it replicates the active's log into the store, and reconnects until Stop or a failure
// of the store. It rejects actives below the fence in the store's identity (INV-1).
type Follower struct {
	o      FollowerOptions
	log    *zap.Logger
	events *eventQueue
	io     ioClock
	stop   context.CancelFunc
	wg     sync.WaitGroup
	// received is set when a message arrives from the active. Each check of the detector resets it.
	received atomic.Bool
	// busy is set while this node does not read from the active.
	busy atomic.Bool

	// resync, if not nil, is the reason to replace the store with a snapshot from the active.
	resync atomic.Pointer[error]

	// The fields below are owned by the run goroutine.
	//
	// applier belongs to the last link; nil before the first.
	applier *applier
	// spaceChecked is the time of the last call of CheckSpace. receivedBytes is the number of bytes received since. Both
	// are guarded by link.writeMu while a link exists.
	spaceChecked  time.Time
	receivedBytes int
	// install is the snapshot being received, installID its ID on the active.
	install   *store.Install
	installID string
	// commonLSN is the LSN of the last record that this node and the active have in common; nil if unknown.
	commonLSN *uint64
	// confirmed is set if the active has all records that this node knows to be committed (INV-13). It is valid for one
	// attempt.
	confirmed bool

	mu sync.Mutex // guards the fields below
	// cancel cancels the current attempt, with a cause.
	cancel context.CancelCauseFunc
	// reported is the last cause in a FollowerLost; zero while connected.
	reported LostCause
	status   FollowerStatus
	link     *link
	conn     Conn
}

// FollowerStatus is the status of a follower.
type FollowerStatus struct {
	// Connected reports whether the active accepted the hello, or sends a snapshot. Required reports whether the active
	// waits for this node's acks.
	Connected, Required bool
	Durable             lsn.Position
	AppliedLSN          uint64
	// ActiveCommitLSN is the last commit LSN received. It is retained after the active is lost.
	ActiveCommitLSN uint64
	// SnapshotBytes is the offset in the page file up to which a snapshot was received. SnapshotTotalBytes is the size
	// of the page file; both are 0 without a transfer.
	SnapshotBytes, SnapshotTotalBytes uint64
	// Refused wraps ErrNotPeer if the active does not accept this node as a member of its pair; otherwise nil.
	Refused error
	Disk    DiskStatus
}

// StartFollower starts the standby role, which runs until Stop or a failure of the store (event Failed).
func StartFollower(o FollowerOptions) *Follower {
	o.Tuning = o.Tuning.withDefaults()
	o.Logger = cmp.Or(o.Logger, zap.NewNop())
	ctx, cancel := context.WithCancel(context.Background())
	f := &Follower{o: o, log: o.Logger, events: startEventQueue(o.Events), stop: cancel}
	f.io.base, f.io.meter = time.Now(), o.Meter
	f.wg.Go(func() { f.run(ctx) })
	f.wg.Go(func() { f.watch(ctx) })
	return f
}

// Stop ends the role. After it returns, no message from the active is accepted or acknowledged (INV-4).
func (f *Follower) Stop() {
	f.stop()
	f.wg.Wait()
	f.events.close()
}

// Resync starts to replace the store with a snapshot from the active. SnapshotInstalled is posted on completion;
// until then, further calls have no effect.
func (f *Follower) Resync(reason error) {
	if !f.resync.CompareAndSwap(nil, &reason) {
		return
	}
	f.o.Store.Repair().AwaitSnapshot()
	f.mu.Lock()
	cancel := f.cancel
	f.mu.Unlock()
	if cancel != nil {
		cancel(reason) // ends the current attempt
	}
}

// Status returns the current status.
func (f *Follower) Status() FollowerStatus {
	f.mu.Lock()
	st, l := f.status, f.link
	f.mu.Unlock()
	st.Disk = f.io.status(f.o.DiskStallTimeout)
	st.Durable, st.AppliedLSN = f.o.Store.Durable(), f.o.Store.Applied().LSN
	if l != nil {
		st.ActiveCommitLSN = max(st.ActiveCommitLSN, l.commit.Load())
	}
	return st
}

func (f *Follower) run(ctx context.Context) {
	defer f.dropInstall()
	delay := time.Duration(0)
	for ctx.Err() == nil {
		began := time.Now()
		worked, err := f.attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		if errors.Is(err, errStore) {
			f.log.Error("store failed; replication stopped", zap.Error(err))
			f.events.post(Failed{Err: err})
			return
		}
		f.lost(err)
		// Reconnect immediately. Back off only if connections fail, or end as soon as they are established.
		if worked && time.Since(began) >= dialBackoffMax {
			delay = 0
			continue
		}
		delay = min(max(2*delay, dialBackoffMin), dialBackoffMax)
		if errors.Is(err, ErrBehind) || errors.Is(err, errOldSnapshot) {
			delay = f.o.BehindRetry
		}
		t := time.NewTimer(delay)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

// lost reports the loss of the active. It reports the loss again if the cause changes, unless the new cause adds no
// information.
func (f *Follower) lost(err error) {
	if err == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status.Connected, f.status.Required = false, false
	cause := causeOf(err)
	switch {
	case errors.Is(err, ErrNotPeer):
		f.status.Refused = err
	case cause != LostSilence && cause != LostReset: // silence and reset do not prove that the active accepts this node
		f.status.Refused = nil
	}
	if cause == LostAhead {
		cause = LostRejected // this node's fence is above the configuration of the active
	}
	switch {
	case cause == f.reported,
		cause == LostReset && f.reported != 0,
		// A silent active adds no information.
		cause == LostSilence && (f.reported == LostRefused || f.reported == LostRejected || f.reported == LostBehind):
		return
	}
	if errors.Is(err, ErrLostRecords) {
		f.events.post(FollowerIncomplete{}) // the active reports only this fact
	}
	f.reported = cause
	f.log.Warn("active lost", zap.String("address", f.o.Address), zap.Stringer("cause", cause), zap.Error(err))
	f.events.post(FollowerLost{Cause: cause, Err: err})
}

func (f *Follower) connected(config, term uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reported = 0
	f.status.Connected, f.status.Refused = true, nil
	f.events.post(FollowerConnected{Config: config, Term: term})
}

// attempt connects once and uses the connection until it ends. worked reports whether the active accepted the hello, or
// a snapshot was installed.
func (f *Follower) attempt(ctx context.Context) (worked bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f.mu.Lock()
	f.cancel = cancel
	f.mu.Unlock()
	defer func() {
		if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrSilent) {
			err = cause
		}
	}()
	f.confirmed = false
	if err := f.checkSpace(spaceCheckBytes); err != nil { // always calls CheckSpace
		return false, err
	}
	dialCtx, done := context.WithTimeout(ctx, f.o.ActiveTimeout)
	conn, err := f.o.Dialer.Dial(dialCtx, f.o.Address)
	done()
	if err != nil {
		return false, fmt.Errorf("connect to the active at %s: %w", f.o.Address, err)
	}
	f.setConn(conn)
	defer func() {
		f.setConn(nil)
		_ = conn.Close()
	}()
	if reason := f.resync.Load(); reason != nil {
		err = fmt.Errorf("%w: %w", errSnapshot, *reason)
	} else {
		worked, err = f.follow(ctx, conn)
	}
	if errors.Is(err, errSnapshot) {
		f.log.Warn("fetching a snapshot from the active", zap.Error(err))
		if err := f.fetch(ctx, conn); err != nil {
			return false, err
		}
		f.resync.Store(nil)
		return true, nil
	}
	return worked, err
}

func (f *Follower) setConn(conn Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conn = conn
}

// checkSpace calls CheckSpace if, since its last call, spaceCheckBytes were received or spaceCheckInterval has
// passed. bytes is the number of bytes to be written next.
func (f *Follower) checkSpace(bytes int) error {
	if f.o.CheckSpace == nil {
		return nil
	}
	now := time.Now()
	if f.receivedBytes += bytes; f.receivedBytes < spaceCheckBytes && now.Sub(f.spaceChecked) < spaceCheckInterval {
		return nil
	}
	need := f.receivedBytes + spaceCheckBytes // until the next check
	f.spaceChecked, f.receivedBytes = now, 0
	if err := f.o.CheckSpace(need); err != nil {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return nil
}

func (f *Follower) watch(ctx context.Context) {
	active := newDetector(f.log, f.o.ActiveTimeout)
	t := time.NewTicker(active.tick())
	defer t.Stop()
	stalled := false
	var conn Conn
	var received uint64
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			alive := f.received.Swap(false) || f.busy.Load()
			if c := f.connection(); c != conn {
				conn, received = c, 0
				active.restart()
			} else if c != nil {
				before := received
				received = c.Received()
				alive = alive || received >= before+flowBytes
			}
			if err := active.step(now, alive); err != nil {
				f.silent(err)
			}
			stalled = f.io.report(stalled, f.o.DiskStallTimeout, f.log, f.events)
		}
	}
}

func (f *Follower) connection() Conn {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.conn
}

func (f *Follower) silent(err error) {
	f.mu.Lock()
	cancel := f.cancel
	f.mu.Unlock()
	if cancel != nil {
		cancel(err)
	}
	f.lost(err)
}

// admit rejects a message with a config and term below the fence, and persists a higher fence (INV-1).
func (f *Follower) admit(config, term uint64) error {
	own, theirs := f.o.Store.Identity().Fence, identity.Fence{Config: config, Term: term}
	switch {
	case theirs == own, mutate.Off("INV-1-standby-accepts-any-fence"):
		return nil
	case theirs.Less(own):
		return fmt.Errorf("%w: the active has config %d term %d, the fence is config %d term %d", ErrStale, config, term,
			own.Config, own.Term)
	}
	if err := f.o.Store.SetFence(theirs); err != nil {
		return fmt.Errorf("%w: persist the fence: %w", errStore, err)
	}
	return nil
}

// hello syncs the log and returns the hello message.
func (f *Follower) hello() (*StandbyMessage, error) {
	s := f.o.Store
	if err := s.Sync(); err != nil {
		return nil, fmt.Errorf("%w: %w", errStore, err)
	}
	id := s.Identity()
	return &StandbyMessage{Config: id.Fence.Config, Term: id.Fence.Term, AppliedLSN: s.Applied().LSN, Hello: &Hello{
		Pair: id.PairID, Member: id.Member(),
		LogEnd: s.End(), Applied: s.Applied(), TermEnds: s.TermEnds(),
		Protocol: ProtocolVersion, OldestProtocol: OldestProtocol, Features: Features(),
		Committed: f.committedPosition(), DiscardedTerm: f.discardedTerm(),
	}}, nil
}

func (f *Follower) align(common lsn.Position) error {
	s := f.o.Store
	end := s.End()
	if end == common {
		return nil
	}
	if own, ok := s.PositionOf(common.LSN); !ok || own != common {
		return fmt.Errorf("%w: the active has %v, and this node has %v", errSnapshot, common, own)
	}
	f.busy.Store(true)
	defer f.busy.Store(false)
	discarded := f.o.DiscardedRange.contains(end) && common.LSN >= f.o.DiscardedRange.After ||
		f.discardedTerm() > 0 && f.confirmed
	cut, err := s.TruncateTail(common, discarded)
	switch {
	case errors.Is(err, store.ErrApplied):
		return fmt.Errorf("%w: %w", errSnapshot, err)
	case errors.Is(err, store.ErrCommitted):
		return fmt.Errorf("%w: %w", ErrBehind, err)
	case err != nil:
		return fmt.Errorf("%w: %w", errStore, err)
	case discarded:
		f.reportDiscarded(common.LSN+1, end, cut)
		return nil
	}
	f.log.Warn("truncated uncommitted records that are missing on the active",
		zap.Int("records", cut.Records), zap.Stringer("after", common), zap.Stringer("up_to", end),
		zap.String("kept_in", cut.File))
	return nil
}
