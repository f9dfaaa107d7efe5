// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

var errRole = errors.New("not possible in this node's role")

// dataPlane executes the decisions of the failover machine. It manages the two roles and the session that serves
// clients. The machine calls its methods from one goroutine. mu protects concurrent readers.
type dataPlane struct {
	node   *node
	self   failover.NodeInfo
	tuning replication.Tuning
	dialer replication.Dialer
	// siteRefusal returns the error for clients while the site is not the primary, or the pair was removed from its fleet.
	// Otherwise it returns nil.
	siteRefusal func() *apierror.NotActiveError

	mu       sync.Mutex // guards the fields below
	primary  *replication.Primary
	follower *replication.Follower
	ready    bool // primary has reported ActiveReady
	serving  failover.ActiveConfig
	idleCh   chan struct{} // closed while the node has neither role
}

func newDataPlane(n *node, self failover.NodeInfo) *dataPlane {
	p := &dataPlane{
		node: n, self: self, dialer: n.environment.dialer(n.dialOptions), siteRefusal: n.refusal,
		idleCh: make(chan struct{}),
	}
	close(p.idleCh)
	p.tuning = replication.Tuning{
		StandbyTimeout: n.cfg.Failover.DropTimeout.Std(), ActiveTimeout: n.cfg.Failover.Timeout.Std(),
		Heartbeat: heartbeat(n.cfg.Failover), DiskStallTimeout: n.cfg.Disk.StallTimeout.Std(),
		QueueBytes:             n.cfg.Limits.PendingBytes.Bytes(),
		CommitDelay:            n.cfg.CommitDelay.Std(),
		TailBytes:              tailMemory(n.cfg.Memory.Budget.Bytes()),
		SnapshotBytesPerSecond: func() int64 { return n.settings.Live().Maintenance.SnapshotRate.Bytes() },
	}
	return p
}

// heartbeat returns the heartbeat interval.
func heartbeat(f config.Failover) time.Duration {
	return max(5*time.Millisecond, min(replication.DefaultHeartbeat, f.DropTimeout.Std()/15))
}

var _ failover.DataPlane = (*dataPlane)(nil)

func (p *dataPlane) Identity() failover.Identity {
	id := p.node.store.Identity()
	renamed := id.Quarantine
	if renamed != "" {
		renamed += " (" + id.QuarantineReason + ")"
	}
	return failover.Identity{
		Node: id.NodeID, Store: id.StoreID, Incarnation: id.Incarnation, PairID: id.PairID,
		Fence: id.Fence, End: p.node.store.End(),
		MayHaveLost: id.MayHaveLost,
		Restored:    id.Restored != "", Quarantine: renamed,
		Generation: id.Generation, ClaimedGeneration: id.ClaimedGeneration,
		Committed: p.node.store.Committed(),
	}
}

// describe adds the failed operation to err. It returns nil if err is nil.
func describe(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (p *dataPlane) MarkLoss(context.Context) error {
	return describe("record a possible loss", p.node.store.MarkLoss())
}

func (p *dataPlane) ClaimGeneration(_ context.Context, listed, claimed uuid.UUID) error {
	return describe("record the process generation", p.node.store.ClaimGeneration(listed, claimed))
}

func (p *dataPlane) ConfirmGeneration(_ context.Context, listed uuid.UUID) error {
	return describe("confirm the process generation", p.node.store.ConfirmGeneration(listed))
}

func (p *dataPlane) Committed() (lsn.Position, bool) {
	primary, err := p.active()
	if err != nil {
		return lsn.Position{}, false
	}
	return primary.Committed()
}

func (p *dataPlane) Handshake(ctx context.Context, address string) (failover.Peer, error) {
	conn, err := p.dialer.Dial(ctx, address)
	if errors.Is(err, replication.ErrRefused) {
		return failover.Peer{}, fmt.Errorf("%w: %w", failover.ErrGone, err)
	}
	if err != nil {
		return failover.Peer{}, fmt.Errorf("hello to %s: %w", address, err)
	}
	defer func() { _ = conn.Close() }()
	by, err := conn.Handshake(ctx, p.node.hello())
	if err != nil {
		return failover.Peer{}, fmt.Errorf("hello to %s: %w", address, err)
	}
	return failover.Peer{Node: by.Node, Store: by.Store, Process: by.Process, End: by.End}, nil
}

func (n *node) hello() replication.ProcessIdentity {
	return replication.Self(n.store, n.runner.Process(), n.advertise)
}

// duplicateSeen notifies the failover machine if from is another process that uses this node's identity.
func (n *node) duplicateSeen(from replication.ProcessIdentity) {
	if me := n.hello(); from.Node == me.Node && from.Process != me.Process {
		n.runner.ReportDuplicate(failover.Live{
			Node:    failover.NodeInfo{ID: from.Node, Address: from.Address},
			Process: from.Process,
		})
	}
}

func (p *dataPlane) JoinPair(_ context.Context, pair uuid.UUID) error {
	return describe("join the pair", p.node.store.JoinPair(pair))
}

func (p *dataPlane) SetFence(_ context.Context, f failover.Fence) error {
	if !p.Identity().Fence.Less(f) {
		return nil
	}
	err := p.node.store.SetFence(f)
	if errors.Is(err, store.ErrFenceLower) {
		return nil
	}
	return describe("persist the fence", err)
}

func (p *dataPlane) ClearLoss(context.Context) error {
	return describe("clear a possible loss", p.node.store.ClearLoss())
}

// StartActive starts the active role. Clients are served when all committed records are applied, unless siteRefusal
// returns an error.
func (p *dataPlane) StartActive(_ context.Context, spec failover.ActiveSpec, post func(failover.DataEvent)) error {
	p.node.maintenance.CancelRewrite() // the active must apply the log, which a rewrite prevents
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.primary != nil || p.follower != nil {
		return fmt.Errorf("start the active role: %w: already started", errRole)
	}
	p.node.store.ServeReaders(true)
	primary, err := replication.StartPrimary(replication.PrimaryOptions{
		Store: p.node.store, Term: spec.Term, Config: activeConfig(spec.ActiveConfig),
		Logger: p.node.log.Named("primary"), Tuning: p.tuning,
		//nolint:contextcheck // work started by an event lives as long as the role
		Events: func(e replication.Event) { p.report(e, post) }, Meter: p.node.meter(),
		Tracer: p.node.tracer(),
	})
	if err != nil {
		return fmt.Errorf("start the active role: %w", err)
	}
	p.primary, p.ready, p.serving = primary, false, spec.ActiveConfig
	p.idleCh = make(chan struct{})
	return nil
}

// report converts an event and forwards it to the machine. It starts to serve clients before the machine receives
// ActiveReady.
func (p *dataPlane) report(e replication.Event, post func(failover.DataEvent)) {
	if _, ready := e.(replication.ActiveReady); ready {
		p.beginServing()
	}
	if event := dataEvent(e); event != nil {
		post(event)
	}
	if _, stalled := e.(replication.DiskStalled); stalled {
		p.node.log.Error("log write or sync blocked; heartbeats stopped, so that the other node takes over",
			zap.Duration("after", p.tuning.DiskStallTimeout))
	}
}

func (p *dataPlane) beginServing() {
	p.mu.Lock()
	primary := p.primary
	p.ready = primary != nil
	p.mu.Unlock()
	if primary != nil {
		p.node.site.Activate(primary)
		p.node.fleet.Activate(primary)
		p.node.mover.Activate(primary)
	}
	p.serveByRole()
}

// serveByRole starts or ends the session according to siteRefusal.
func (p *dataPlane) serveByRole() {
	for {
		refusal := p.siteRefusal()
		if refusal == nil {
			p.serve()
		} else {
			p.refuse(refusal)
		}
		if (p.siteRefusal() == nil) == (refusal == nil) {
			return // the result has not changed in the meantime
		}
	}
}

func (p *dataPlane) serve() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.primary == nil || !p.ready || p.node.serving.Get() != nil {
		return
	}
	p.primary.RestrictToSite(nil)
	o := session.Options{Limits: p.node.settings.Live().Limits, Counters: &p.node.deliveries}
	if p.node.fleet != nil {
		o.Deleted = p.node.fleet.Deleted
	}
	session := session.NewSession(p.primary, p.node.store, o, p.node.log.Named("consumers"))
	session.SetPaused(!p.serving.Deliver)
	session.Prepared.SetTimeout(p.node.settings.Live().Txn.PreparedTimeout.Std())
	p.node.serving.Set(session) // until StopActive or refuse
	p.showHealth()
}

// refuse ends the session. If the site is not the primary, it also rejects all writes with refusal (INV-26).
func (p *dataPlane) refuse(refusal *apierror.NotActiveError) {
	p.mu.Lock()
	session := p.node.serving.Get()
	if p.primary != nil && refusal.Replica {
		p.primary.RestrictToSite(refusal)
	}
	p.node.serving.Set(nil)
	p.showHealth()
	p.mu.Unlock()
	if session != nil {
		session.SetPaused(true)
		session.Leave(refusal)
	}
}

func (p *dataPlane) ConfigureActive(_ context.Context, cfg failover.ActiveConfig) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.primary == nil {
		return fmt.Errorf("configure the active role: %w", errRole)
	}
	p.serving = cfg
	session := p.node.serving.Get()
	if session != nil && !cfg.Deliver {
		session.SetPaused(true) // INV-2: before anything else
	}
	p.primary.Configure(activeConfig(cfg))
	if session != nil && cfg.Deliver {
		session.SetPaused(false)
	}
	p.showHealth()
	return nil
}

// StopActive ends the active role. It redirects consumers and publish streams to the node next.
func (p *dataPlane) StopActive(_ context.Context, next failover.NodeInfo) error {
	p.mu.Lock()
	primary, session := p.primary, p.node.serving.Get()
	p.primary, p.ready = nil, false
	p.node.serving.Set(nil)
	p.showHealth()
	p.mu.Unlock()
	if primary == nil {
		return nil
	}
	p.node.site.Deactivate()
	p.node.fleet.Deactivate()
	p.node.mover.Deactivate()
	if session != nil {
		session.SetPaused(true)
		session.End(p.node.notActiveError(next))
	}
	primary.Stop() // no effect if the session has already stopped it
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.idleCh)
	return nil
}

func (p *dataPlane) StartFollower(_ context.Context, spec failover.FollowSpec, post func(failover.DataEvent)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.primary != nil || p.follower != nil {
		return fmt.Errorf("start the standby role: %w: already started", errRole)
	}
	p.node.store.ServeReaders(false)
	p.follower = replication.StartFollower(replication.FollowerOptions{
		Store: p.node.store, Dialer: p.dialer, Address: spec.Active.Address, Logger: p.node.log.Named("follower"),
		Tuning: p.tuning,
		//nolint:contextcheck // work started by an event lives as long as the role
		Events:         func(e replication.Event) { p.report(e, post) },
		DiscardedRange: discardedRange(spec.Forced), CheckSpace: p.node.standbySpace,
		Meter: p.node.meter(), Tracer: p.node.tracer(),
	})
	p.idleCh = make(chan struct{})
	p.node.maintenance.Following()
	return nil
}

// StopFollower stops following. After that, the node accepts no data from the old active (INV-4).
func (p *dataPlane) StopFollower(context.Context) error {
	p.node.maintenance.CancelRewrite() // the follower waits for pending applies, which a rewrite prevents
	p.mu.Lock()
	follower := p.follower
	p.mu.Unlock()
	if follower == nil {
		return nil
	}
	follower.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.follower = nil
	close(p.idleCh)
	return nil
}

func (p *dataPlane) Drain(ctx context.Context) (lsn.Position, error) {
	primary, err := p.active()
	if err != nil {
		return lsn.Position{}, err
	}
	return primary.Drain(ctx)
}

func (p *dataPlane) Resume(context.Context) error {
	if primary, err := p.active(); err == nil {
		primary.Resume()
	}
	return nil
}

func (p *dataPlane) active() (*replication.Primary, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.primary == nil {
		return nil, replication.ErrNotActive
	}
	return p.primary, nil
}

func (p *dataPlane) service() (replication.Service, error) {
	primary, err := p.active()
	if err != nil {
		return nil, err
	}
	return primary, nil
}

// idle returns a channel that is closed while the node has neither role.
func (p *dataPlane) idle() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.idleCh
}

func (p *dataPlane) roles() (*replication.PrimaryStatus, *replication.FollowerStatus) {
	p.mu.Lock()
	primary, follower := p.primary, p.follower
	p.mu.Unlock()
	switch {
	case primary != nil:
		st := primary.Status()
		return &st, nil
	case follower != nil:
		st := follower.Status()
		return nil, &st
	default:
		return nil, nil
	}
}

// showHealth sets the health status of QueueService. It is SERVING while this node is active and may acknowledge
// and deliver messages. The caller must hold mu.
func (p *dataPlane) showHealth() {
	status := healthpb.HealthCheckResponse_NOT_SERVING
	if p.node.serving.Get() != nil && p.serving.Serve && p.serving.Deliver {
		status = healthpb.HealthCheckResponse_SERVING
	}
	p.node.health.SetServingStatus(pb.QueueService_ServiceDesc.ServiceName, status)
}

// notActive returns an error that redirects clients to the active node.
func (n *node) notActive() *apierror.NotActiveError { return n.notActiveError(failover.NodeInfo{}) }

// notActiveError returns an error that redirects clients to next. If next is the zero value, the error redirects
// them to the active node. If this node is active, the error may be that of a site that is not the primary.
func (n *node) notActiveError(next failover.NodeInfo) *apierror.NotActiveError {
	st := n.runner.Status()
	if active, ok := st.ActiveNode(); ok && active.ID == st.Self.ID && next.ID == uuid.Nil {
		if refusal := n.site.Refusal(); refusal != nil {
			return refusal
		}
	}
	select {
	case <-n.closing:
		st.Reason = "stopping"
	default:
	}
	return protoconv.NotActive(&st, next)
}

// resync requests a snapshot of the active to replace the store of this standby. It returns false if this node
// follows no active.
func (p *dataPlane) resync(cause error) bool {
	p.mu.Lock()
	follower := p.follower
	p.mu.Unlock()
	if follower == nil {
		return false
	}
	follower.Resync(cause)
	return true
}

func activeConfig(c failover.ActiveConfig) replication.PrimaryConfig {
	return replication.PrimaryConfig{
		Config: c.Config, RequireStandby: c.RequireStandby, Standby: c.Standby,
		Requirement: c.Requirement, Serve: c.Serve, Reason: c.Reason,
	}
}

// dataEvent converts a replication event to a failover event. It returns nil for events that the failover machine
// does not need.
func dataEvent(e replication.Event) failover.DataEvent {
	switch e := e.(type) {
	case replication.ActiveReady:
		return failover.ActiveReady{}
	case replication.StandbyConnected:
		return failover.StandbyConnected{Member: e.Member}
	case replication.StandbyAhead:
		return failover.StandbyAhead{Member: e.Member, End: e.End, Committed: e.Committed}
	case replication.StandbyCaughtUp:
		return failover.StandbyCaughtUp{Member: e.Member}
	case replication.StandbySynced:
		return failover.StandbySynced{Member: e.Member, Requirement: e.Requirement}
	case replication.StandbyLost:
		return failover.StandbyLost{Node: e.Member.Node, Cause: lostCause(e.Cause), Err: e.Err}
	case replication.FollowerConnected:
		return failover.FollowerConnected{Config: e.Config, Term: e.Term}
	case replication.FollowerIncomplete:
		return failover.FollowerIncomplete(e)
	case replication.FollowerRequired:
		return failover.FollowerRequired{}
	case replication.FollowerLost:
		return failover.FollowerLost{Cause: lostCause(e.Cause), Err: e.Err}
	case replication.DiskStalled:
		return failover.DiskStalled{Stalled: true}
	case replication.DiskRecovered:
		return failover.DiskStalled{}
	case replication.Failed:
		return failover.Failed{Err: e.Err}
	default:
		return nil
	}
}

func lostCause(c replication.LostCause) failover.LostCause {
	switch c {
	case replication.LostReset:
		return failover.LostReset
	case replication.LostRefused:
		return failover.LostRefused
	case replication.LostSilence:
		return failover.LostSilence
	case replication.LostRejected:
		return failover.LostRejected
	case replication.LostSlow:
		return failover.LostSlow
	case replication.LostAhead:
		return failover.LostAhead
	case replication.LostNoSpace:
		return failover.LostNoSpace
	case replication.LostBehind:
		return failover.LostBehind
	default:
		return failover.LostReset
	}
}
