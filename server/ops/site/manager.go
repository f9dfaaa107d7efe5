// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// watchInterval is the interval at which a primary requests the state of the other site. resolveInterval is the
	// interval at which a stopped primary requests it.
	watchInterval   = 2 * time.Second
	resolveInterval = 250 * time.Millisecond
	retryMin        = 50 * time.Millisecond
	retryMax        = 2 * time.Second
)

// Options configures New.
type Options struct {
	Name   string   // site.name; may be empty
	Remote []string // site.remote
	Dial   []grpc.DialOption
	Store  *store.Store
	Logger *zap.Logger
	// Addresses returns the addresses of the nodes of this pair.
	Addresses func() []string
	// Supported returns an error if a node of this pair runs a release that does not support sites.
	Supported func() error
	// NotActive returns the error that clients receive from a node that is not active.
	NotActive func() error
	// Space returns an error if the disk has no space for a file of the given size. Optional.
	Space func(bytes uint64) error
	// Changed is called after a change of the site's role or of the state of the other site.
	Changed func()
}

// Manager controls the role of this site. It is safe for concurrent use.
type Manager struct {
	o        Options
	log      *zap.Logger
	remote   *remote
	role     chan struct{} // capacity 1: held during a change of the role
	progress progress
	verify   chan struct{} // capacity 1: held during a comparison of the sites
	seed     retention     // retains the log for a replica that received a snapshot
	lost     lost          // guarded by role
	lag      lagLimit

	mu      sync.Mutex // guards the fields below
	primary *replication.Primary
	wake    chan struct{} // closed and replaced when primary changes
	puller  *puller       // of the current stream; nil without a stream
	pulls   chan struct{} // closed and replaced when puller changes
	heard   heard
	differ  string // result of the last comparison of a replica with its primary; empty if they are equal
}

// heard is the last known state of the other site, and the result of the last request for it.
type heard struct {
	state *pb.SiteState // last received state; nil if none was received
	at    time.Time     // when state was received
	err   error         // why the last request failed; nil if it succeeded
}

// New returns a Manager. The caller must call Run.
func New(o Options) *Manager {
	return &Manager{
		o: o, log: o.Logger, remote: newRemote(&o), role: make(chan struct{}, 1),
		verify: make(chan struct{}, 1), wake: make(chan struct{}), pulls: make(chan struct{}),
		lag: lagLimit{wake: make(chan struct{}, 1)},
	}
}

// Activate records that this node is the active of its pair, with p as its primary. All committed records must be
// applied.
func (m *Manager) Activate(p *replication.Primary) { m.use(p) }

// Deactivate records that this node is no longer the active. It cancels the transfer of a snapshot to a replica, if one
// is in progress, and releases the log that is retained for that replica.
func (m *Manager) Deactivate() {
	m.use(nil)
	m.seed.drop(m.seed.last(), replication.ErrNotActive)
}

func (m *Manager) use(p *replication.Primary) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.primary != p {
		m.primary = p
		m.heard = heard{}
		close(m.wake)
		m.wake = make(chan struct{})
	}
}

// active returns the primary of this pair. On a node that is not active, it returns the error of
// Options.NotActive.
func (m *Manager) active() (*replication.Primary, error) {
	m.mu.Lock()
	p := m.primary
	m.mu.Unlock()
	if p == nil {
		return nil, m.o.NotActive()
	}
	return p, nil
}

// Run repeats the task of this site's role while this node is active, and enforces the lag limit (SetMaxLag), until ctx
// ends.
func (m *Manager) Run(ctx context.Context) {
	defer m.remote.close()
	var limiting sync.WaitGroup
	limiting.Go(func() { m.limitLag(ctx) })
	defer limiting.Wait()
	for ctx.Err() == nil {
		changed := m.o.Store.SiteChanged()
		m.mu.Lock()
		primary, wake := m.primary, m.wake
		m.mu.Unlock()
		st := m.o.Store.Site()
		task := m.taskFor(primary, &st)
		if task == nil {
			select {
			case <-wake:
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		m.runUntil(ctx, task, wake, changed)
	}
}

type task func(ctx context.Context) (wait time.Duration)

// taskFor returns the task of the current role. It returns nil if this node is not the active, or site.remote is not
// set. The task is repeated until the role changes.
func (m *Manager) taskFor(primary *replication.Primary, st *queue.SiteState) task {
	switch {
	case primary == nil || len(m.o.Remote) == 0:
		return nil
	case st.Role == queue.SiteReplica:
		var failures int
		return func(ctx context.Context) time.Duration { return m.pullOnce(ctx, primary, &failures) }
	case st.Role == queue.SiteStopped:
		return func(ctx context.Context) time.Duration { return m.resolve(ctx, primary) }
	default:
		return func(ctx context.Context) time.Duration { return m.watch(ctx, primary) }
	}
}

// runUntil repeats a task until wake or changed is closed, or ctx ends.
func (m *Manager) runUntil(ctx context.Context, t task, wake, changed <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			wait := t(ctx)
			timer := time.NewTimer(wait)
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
			timer.Stop()
		}
	}()
	select {
	case <-wake:
	case <-changed:
	case <-ctx.Done():
	}
	cancel()
	<-ended
}

// lockRole prevents concurrent changes of the role until unlockRole is called.
func (m *Manager) lockRole(ctx context.Context) error {
	select {
	case m.role <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("another change of the site's role is in progress: %w", ctx.Err())
	}
}

func (m *Manager) unlockRole() { <-m.role }

// change commits a change of the site's state. It sets c.Expected to the current epoch.
func (m *Manager) change(ctx context.Context, primary *replication.Primary, c txn.SiteChange) error {
	_, err := m.changeAt(ctx, primary, c)
	return err
}

// changeAt is like change, but also returns the LSN of the record if this site is a primary or is stopped.
func (m *Manager) changeAt(ctx context.Context, primary *replication.Primary, c txn.SiteChange) (uint64, error) {
	if err := m.o.Supported(); err != nil {
		return 0, err
	}
	c.Expected = m.o.Store.Site().Epoch
	payload, err := txn.Build(time.Now(), func(b *txn.Builder) { b.Site(c) })
	if err != nil {
		return 0, fmt.Errorf("encode a change of the site: %w", err)
	}
	r, err := primary.CommitSite(ctx, payload)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		return 0, fmt.Errorf("change the role of the site: %w", err)
	}
	st := m.o.Store.Site()
	m.log.Info("site changed", zap.Stringer("action", c.Action), zap.Stringer("role", st.Role),
		zap.Uint64("epoch", st.Epoch), zap.Uint64("lsn", r.LSN))
	m.o.Changed()
	at, _ := st.LSNOf(r.LSN)
	return at, nil
}

// setHeard records the state of the other site or, if err is not nil, why the state could not be requested.
func (m *Manager) setHeard(st *pb.SiteState, err error) {
	m.mu.Lock()
	if err != nil {
		m.heard.err = err
	} else {
		m.heard = heard{state: st, at: time.Now()}
	}
	m.mu.Unlock()
	m.o.Changed()
}

// ask requests the state of the other site, and records the result. It returns the address of the active node there,
// and its state.
func (m *Manager) ask(ctx context.Context) (string, *pb.SiteState, error) {
	address, st, err := m.remote.find(ctx)
	if ctx.Err() == nil {
		m.setHeard(st, err)
	}
	return address, st, err
}

// watch requests the state of the other site. If that site was promoted, watch stops this primary. It returns the
// time until the next request.
func (m *Manager) watch(ctx context.Context, primary *replication.Primary) time.Duration {
	_, remote, err := m.ask(ctx)
	st := m.o.Store.Site()
	if err != nil || !supersedes(remote, &st) {
		return watchInterval
	}
	if err := m.lockRole(ctx); err != nil {
		return watchInterval
	}
	defer m.unlockRole()
	m.log.Error("another site was promoted: this site stops", zap.String("site", remote.GetName()),
		zap.Uint64("epoch", remote.GetEpoch()))
	if err := m.change(ctx, primary, txn.SiteChange{Action: txn.SiteStop}); err != nil {
		m.log.Error("site not stopped", zap.Error(err))
	}
	return retryMin
}

// supersedes reports whether the other site was promoted after this site.
func supersedes(remote *pb.SiteState, st *queue.SiteState) bool {
	return remote.GetLineage() != "" && remote.GetLineage() == st.Lineage.String() &&
		remote.GetEpoch() > st.Epoch
}

// Status is the status of this site, for the node status, conditions and metrics.
type Status struct {
	Name  string
	State queue.SiteState
	// Active reports whether this node is the active of its pair. The fields below are set only if it is.
	Active   bool
	Remote   *pb.SiteState // last known state of the other site; nil if unknown
	RemoteAt time.Time     // when Remote was received
	Err      error         // why the other site does not respond, or why the replica does not receive the log
	Progress Progress      // replicas only
	Lag      Lag           // primaries with a limit only
}

// Configured reports whether the pair has a role in a group of sites, or site.name is set.
func (m *Manager) Configured() bool {
	return m.o.Name != "" || m.o.Store.Site().Role != queue.SiteNone
}

// Status returns the current status.
func (m *Manager) Status() Status {
	st := Status{Name: m.o.Name, State: m.o.Store.Site()}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.primary == nil {
		return st
	}
	st.Active, st.Remote, st.RemoteAt, st.Err = true, m.heard.state, m.heard.at, m.heard.err
	if st.State.Role == queue.SiteReplica {
		st.Progress = m.progress.now(time.Now())
	}
	if st.State.Role == queue.SitePrimary {
		st.Lag = m.lag.now()
	}
	return st
}

// RemoteAddresses returns the known addresses of the other site.
func (m *Manager) RemoteAddresses() []string { return m.remote.addresses() }

// Info returns the site information for the status of a node. It returns nil unless Configured reports true.
func (m *Manager) Info() *pb.SiteInfo {
	st := m.o.Store.Site()
	if st.Role == queue.SiteNone && m.o.Name == "" {
		return nil
	}
	info := &pb.SiteInfo{
		Name: m.o.Name, Role: roleToProto(st.Role), Epoch: st.Epoch, LossyEpoch: st.LossyEpoch,
		RemoteAddresses: m.remote.addresses(),
	}
	if st.Role != queue.SiteNone {
		info.Lineage = st.Lineage.String()
	}
	return info
}

// Refusal returns the error that rejects clients while this site is a replica or a stopped primary. Otherwise it
// returns nil.
func (m *Manager) Refusal() *apierror.NotActiveError {
	st := m.o.Store.Site()
	if st.Role == queue.SiteNone || st.Role == queue.SitePrimary {
		return nil
	}
	e := &apierror.NotActiveError{
		Role: "REPLICA", Replica: true, RetryAfter: retryMin, PrimaryAddresses: m.remote.addresses(),
		Reason: fmt.Sprintf("site %s is a replica", m.o.Name),
	}
	if st.Role == queue.SiteStopped {
		e.Reason = fmt.Sprintf("site %s has stopped as the primary", m.o.Name)
	}
	return e
}

// state returns the state of this site, which is sent to the other site and to operators.
func (m *Manager) state() *pb.SiteState {
	st := m.o.Store.Site()
	out := &pb.SiteState{
		Name: m.o.Name, Role: roleToProto(st.Role), Epoch: st.Epoch, LossyEpoch: st.LossyEpoch,
		Origin:        positionToProto(st.Origin),
		LogicalOffset: st.Offset, Addresses: m.o.Addresses(), Now: timestamppb.Now(),
		Applied: positionToProto(m.o.Store.Applied()),
	}
	if st.Role == queue.SiteNone {
		return out
	}
	out.Lineage = st.Lineage.String()
	if st.Role == queue.SiteReplica {
		out.Upstream = positionToProto(st.Upstream)
		return out
	}
	if at, ok := m.o.Store.PositionOf(st.PromotedLSN); ok && st.PromotedLSN > 0 {
		out.Promoted = positionToProto(at)
	}
	return out
}

// backoff returns the delay before the next attempt.
func backoff(failures int) time.Duration {
	return min(retryMin<<min(failures, 8), retryMax)
}

// pullOnce pulls the log of the primary until the stream ends. It returns the delay before the next attempt.
func (m *Manager) pullOnce(ctx context.Context, primary *replication.Primary, failures *int) time.Duration {
	began := time.Now()
	st := m.o.Store.Site()
	err := m.pull(ctx, primary, follow{
		lineage: st.Lineage, epoch: st.Epoch, at: st.Upstream, logical: st.Logical, stopped: st.UpstreamStopped,
	})
	if ctx.Err() != nil || errors.Is(err, errRoleChanged) {
		return 0
	}
	m.setHeard(nil, err)
	m.log.Warn("log of the primary site is not received", zap.Error(err))
	if time.Since(began) > retryMax {
		*failures = 0
	}
	*failures++
	return backoff(*failures)
}

// follow is the position at which a replica continues in the log of its primary.
type follow struct {
	lineage uuid.UUID // zero if the pair has no sites yet
	epoch   uint64
	at      lsn.Position
	logical uint64 // logical number of the last transaction
	stopped bool   // the primary was stopped at this position
}

// open opens a stream of the primary's log that continues at f. It returns the stream and its first response.
func (m *Manager) open(ctx context.Context, f follow) (
	grpc.ServerStreamingClient[pb.PullLogResponse], *pb.PullLogResponse, error,
) {
	address, _, err := m.ask(ctx)
	if err != nil {
		return nil, nil, err
	}
	return m.openAt(ctx, address, f)
}

// openAt is like open, but uses the node at the given address.
func (m *Manager) openAt(ctx context.Context, address string, f follow) (
	grpc.ServerStreamingClient[pb.PullLogResponse], *pb.PullLogResponse, error,
) {
	c, err := m.remote.client(address)
	if err != nil {
		return nil, nil, err
	}
	req := &pb.PullLogRequest{Site: m.o.Name, Epoch: f.epoch, After: positionToProto(f.at)}
	if f.lineage != uuid.Nil {
		req.Lineage = f.lineage.String()
	}
	stream, err := c.PullLog(ctx, req)
	if err != nil {
		return nil, nil, fromStatus(err)
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, nil, fromStatus(err)
	}
	return stream, first, nil
}

// pull makes this site a replica of the primary if necessary (adopt), and commits the log of the primary until the
// stream ends. It returns the error that ended the stream.
func (m *Manager) pull(ctx context.Context, primary *replication.Primary, f follow) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	address, _, err := m.ask(ctx)
	if err != nil {
		return err
	}
	stream, first, err := m.openAt(ctx, address, f)
	if err != nil {
		return err
	}
	if err := m.adopt(ctx, primary, f, first.GetPrimary()); err != nil {
		return err
	}
	st := m.o.Store.Site()
	p, err := newPuller(primary, &m.progress, &st, f.at)
	if err != nil {
		return err
	}
	m.progress.reset(f.at, st.Epoch)
	m.progress.connected(true)
	m.setPuller(p)
	var reports sync.WaitGroup
	defer func() {
		cancel()
		reports.Wait()
		m.setPuller(nil)
		m.progress.connected(false)
	}()
	reports.Go(func() { m.reportPositions(ctx, p, address) })
	err = p.run(ctx, first, stream)
	if err != nil {
		err = fromStatus(err)
	}
	return err
}

func (m *Manager) setPuller(p *puller) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.puller = p
	close(m.pulls)
	m.pulls = make(chan struct{})
}

// adopt makes this site the replica of next in the epoch of next, unless it already is.
func (m *Manager) adopt(ctx context.Context, primary *replication.Primary, f follow, next *pb.SiteState) error {
	lineage, err := uuid.Parse(next.GetLineage())
	if err != nil {
		return fmt.Errorf("lineage of the primary: %w", err)
	}
	if f.lineage == lineage && f.epoch == next.GetEpoch() && m.o.Store.Site().Role == queue.SiteReplica {
		return nil
	}
	return m.change(ctx, primary, txn.SiteChange{
		Action: txn.SiteFollow, Lineage: lineage, Epoch: next.GetEpoch(), Upstream: f.at, Logical: f.logical,
		Stopped: f.stopped, LossyEpoch: next.GetLossyEpoch(),
	})
}
