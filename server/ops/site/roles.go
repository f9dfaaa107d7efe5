// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

const (
	// DefaultSwitchTimeout is the default limit of each wait for the replica in a planned switch: until its lag is
	// small, and until it has applied the last transaction.
	DefaultSwitchTimeout = 10 * time.Second
	// maxSwitchLag is the maximum number of bytes that a replica may lack when a planned switch stops the primary.
	maxSwitchLag = 1 << 20
	// resolveTimeout is how long a failed switch waits for the decision of the replica. After that time, the outcome is
	// reported as unknown.
	resolveTimeout = 5 * time.Second
	// probeTimeout is how long a promotion waits for a response of the primary.
	probeTimeout = time.Second
)

// Switched is the result of a planned switch.
type Switched struct {
	Primary *pb.SiteState
	// Pause is the time during which neither site accepted writes, as measured by the former primary.
	Pause time.Duration
}

// Switch moves the primary role to the other site without loss of transactions. This site must be the primary. If to
// is not empty, it must be the name of the other site. timeout limits each wait for the replica (see
// DefaultSwitchTimeout). After replication.ErrOutcomeUnknown, the other site may be the primary. After other errors,
// the role of this site is unchanged, unless its resume failed as well: then it stays stopped until resolve succeeds.
func (m *Manager) Switch(ctx context.Context, to string, timeout time.Duration) (Switched, error) {
	primary, err := m.active()
	if err != nil {
		return Switched{}, err
	}
	if err := m.lockRole(ctx); err != nil {
		return Switched{}, err
	}
	defer m.unlockRole()
	st := m.o.Store.Site()
	if st.Role != queue.SitePrimary {
		return Switched{}, fmt.Errorf("%w: site %s is not a primary with a replica", ErrRole, m.o.Name)
	}
	address, remote, err := m.ask(ctx)
	if err != nil {
		return Switched{}, err
	}
	switch {
	case to != "" && remote.GetName() != to:
		return Switched{}, fmt.Errorf("%w: the other site is %q, not %q", ErrRole, remote.GetName(), to)
	case remote.GetRole() != pb.SiteRole_SITE_ROLE_REPLICA || remote.GetLineage() != st.Lineage.String():
		return Switched{}, fmt.Errorf("%w: site %s is not a replica of this site", ErrRole, remote.GetName())
	}
	if err := m.awaitReplica(ctx, address, timeout); err != nil {
		return Switched{}, err
	}
	// From here on, do not depend on ctx: the caller may be a client of this pair.
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout+resolveTimeout)
	defer cancel()
	return m.handOver(work, primary, address, timeout)
}

// awaitReplica waits until the replica at an address is connected and lacks at most maxSwitchLag bytes.
func (m *Manager) awaitReplica(ctx context.Context, address string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		c, err := m.remote.client(address)
		if err != nil {
			return err
		}
		resp, err := c.GetSite(ctx, &pb.GetSiteRequest{})
		r := resp.GetReplication()
		switch {
		case err != nil:
			return fromStatus(err)
		case r.GetConnected() && r.GetLagBytes() <= maxSwitchLag:
			return nil
		}
		timer := time.NewTimer(retryMin)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: the replica lacks %d bytes, connected: %v", ErrSwitch, r.GetLagBytes(), r.GetConnected())
		}
	}
}

// handOver stops this primary and requests that the other site takes over.
func (m *Manager) handOver(
	ctx context.Context, primary *replication.Primary, address string, timeout time.Duration,
) (Switched, error) {
	st := m.o.Store.Site()
	start := time.Now()
	at, err := m.changeAt(ctx, primary, txn.SiteChange{Action: txn.SiteStop})
	if err != nil {
		return Switched{}, err
	}
	end, ok := m.o.Store.PositionOf(at)
	if !ok { // resolve completes the switch later
		return Switched{}, fmt.Errorf("%w: record %d of the stop is not in the log", replication.ErrOutcomeUnknown, at)
	}
	c, err := m.remote.client(address)
	var next *pb.SiteState
	if err == nil {
		var resp *pb.TakeoverResponse
		call, cancel := context.WithTimeout(ctx, timeout+requestTimeout)
		resp, err = c.Takeover(call, &pb.TakeoverRequest{
			Lineage: st.Lineage.String(), Epoch: st.Epoch, End: positionToProto(end),
			Timeout: durationpb.New(timeout),
		})
		cancel()
		next, err = resp.GetSite(), fromStatus(err)
	}
	if err != nil {
		var known error
		next, known = m.cancelTakeover(ctx, &st, end)
		switch {
		case known != nil:
			return Switched{}, fmt.Errorf("%w: switch of the primary site: this site stays stopped until the other one "+
				"answers: %w", replication.ErrOutcomeUnknown, errors.Join(err, known))
		case next.GetEpoch() <= st.Epoch:
			if rerr := m.change(ctx, primary, txn.SiteChange{Action: txn.SiteResume}); rerr != nil {
				return Switched{}, errors.Join(err, rerr)
			}
			return Switched{}, fmt.Errorf("%w: this site is still the primary: %w", ErrSwitch, err)
		}
	}
	pause := time.Since(start)
	m.setHeard(next, nil)
	m.remote.learn(next.GetAddresses())
	if err := m.followNext(ctx, primary, next); err != nil {
		m.log.Warn("switched site does not follow yet", zap.Error(err)) // resolve retries
	}
	return Switched{Primary: next, Pause: pause}, nil
}

// cancelTakeover requests that the other site cancels the takeover. It retries until it receives a response or ctx
// ends, for at most resolveTimeout.
func (m *Manager) cancelTakeover(ctx context.Context, st *queue.SiteState, end lsn.Position) (*pb.SiteState, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	for {
		next, err := m.cancelOnce(ctx, st, end)
		if err == nil || ctx.Err() != nil {
			return next, err
		}
		timer := time.NewTimer(resolveInterval)
		select {
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

func (m *Manager) cancelOnce(ctx context.Context, st *queue.SiteState, end lsn.Position) (*pb.SiteState, error) {
	address, _, err := m.ask(ctx)
	if err != nil {
		return nil, err
	}
	c, err := m.remote.client(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	resp, err := c.CancelTakeover(ctx, &pb.CancelTakeoverRequest{
		Lineage: st.Lineage.String(), Epoch: st.Epoch, End: positionToProto(end),
	})
	return resp.GetSite(), fromStatus(err)
}

// resolve ends the stopped state of this primary. If the other site was promoted, this site becomes its replica.
// Otherwise this site resumes as the primary. It returns the time until the next attempt.
func (m *Manager) resolve(ctx context.Context, primary *replication.Primary) time.Duration {
	if err := m.lockRole(ctx); err != nil {
		return resolveInterval
	}
	defer m.unlockRole()
	st := m.o.Store.Site()
	if st.Role != queue.SiteStopped {
		return 0
	}
	next, err := m.cancelOnce(ctx, &st, m.o.Store.Applied())
	switch {
	case err != nil:
		m.setHeard(nil, err)
		return resolveInterval
	case next.GetEpoch() > st.Epoch:
		err = m.followNext(ctx, primary, next)
	default:
		err = m.change(ctx, primary, txn.SiteChange{Action: txn.SiteResume})
	}
	if err != nil {
		m.setHeard(nil, err)
		m.log.Warn("stopped site", zap.Error(err))
		return watchInterval
	}
	return 0
}

// followNext makes this former primary the replica of the promoted site, if this site has no transactions that
// the promoted site lacks.
func (m *Manager) followNext(ctx context.Context, primary *replication.Primary, next *pb.SiteState) error {
	f, err := m.base(next)
	if err != nil {
		return err
	}
	return m.adopt(ctx, primary, f, next)
}

// base returns the position at which this pair continues in the log of a primary. If the pair cannot continue, the
// error is ErrDiverged, ErrBehind or a LostError (nothingAfter).
func (m *Manager) base(next *pb.SiteState) (follow, error) {
	st := m.o.Store.Site()
	f := follow{lineage: st.Lineage, epoch: st.Epoch}
	if st.Role != queue.SiteNone && next.GetLineage() != "" && next.GetLineage() != st.Lineage.String() {
		return f, fmt.Errorf("%w: lineage of this site is %s, that of the primary %s", ErrDiverged, st.Lineage,
			next.GetLineage())
	}
	switch {
	case st.Role == queue.SiteReplica:
		f.at, f.logical, f.stopped = st.Upstream, st.Logical, st.UpstreamStopped
		return f, nil
	case st.Role != queue.SiteNone && next.GetEpoch() > st.Epoch:
		origin, promoted := positionFromProto(next.GetOrigin()), positionFromProto(next.GetPromoted())
		if err := m.nothingAfter(origin); err != nil {
			return f, err
		}
		if promoted.IsZero() {
			return f, fmt.Errorf("%w: it no longer contains the promotion", ErrBehind)
		}
		f.at, f.logical = promoted, promoted.LSN+next.GetLogicalOffset()
		return f, nil
	default:
		at, err := m.lastTransaction()
		f.at, f.logical = at, at.LSN+st.Offset
		return f, err
	}
}

// effects counts the transactions in a part of the log that had an effect.
type effects struct {
	n      uint64
	last   lsn.Position
	reader txn.Reader
	// known is set if the role is known. refusing is set if transactions have no effect in that role.
	known, refusing bool
	// early is the number of transactions before the first role change. lastEarly is the position of the last of these
	// transactions.
	early     uint64
	lastEarly lsn.Position
}

func (c *effects) add(f *wal.Frame) {
	if f.Kind != wal.KindTxn || c.reader.Reset(f.Payload) != nil || c.reader.Site() != nil {
		return
	}
	if change, is, err := c.reader.SiteChange(); is && err == nil {
		if change.Action == txn.SiteCancel {
			return
		}
		if !c.known && (change.Action == txn.SiteStop || change.Action == txn.SiteStart) {
			c.countEarly() // before the change, this site was a primary or had no role
		}
		c.known = true
		c.refusing = change.Action == txn.SiteStop || change.Action == txn.SiteFollow
		return
	}
	switch {
	case !c.known:
		c.early, c.lastEarly = c.early+1, f.Pos
	case !c.refusing:
		c.n, c.last = c.n+1, f.Pos
	}
}

func (c *effects) countEarly() {
	if c.early > 0 {
		c.n, c.last = c.early, c.lastEarly
	}
}

// end returns the number of transactions with an effect, and the position of the last such transaction. role is the
// current role of this site.
func (c *effects) end(role queue.SiteRole) (n uint64, last lsn.Position) {
	if !c.known && (role == queue.SitePrimary || role == queue.SiteNone) {
		c.countEarly()
	}
	return c.n, c.last
}

// Takeover makes this replica the primary after it has applied the record that stopped the old primary. It fails if
// the old primary has canceled the stop.
func (m *Manager) Takeover(ctx context.Context, req *pb.TakeoverRequest) (*pb.SiteState, error) {
	primary, err := m.active()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, req.GetTimeout().AsDuration())
	defer cancel()
	end := positionFromProto(req.GetEnd())
	if err := m.checkTakeover(req, end); err != nil {
		return nil, err
	}
	if err := m.awaitRecord(ctx, end); err != nil {
		return nil, err
	}
	if err := m.lockRole(ctx); err != nil {
		return nil, err
	}
	defer m.unlockRole()
	if err := m.checkTakeover(req, end); err != nil {
		return nil, err
	}
	// The state of the store proves that no transaction is missing. The store also rejects the promotion if it
	// applies a resume of the primary first.
	if st := m.o.Store.Site(); !st.MayTakeOver() || st.StopLSN != end.LSN {
		return nil, fmt.Errorf("%w: the replica is at record %v, and has not applied %v as the stop of the primary",
			ErrSwitch, st.Upstream, end)
	}
	// From here on, the outcome does not depend on ctx.
	work := context.WithoutCancel(ctx)
	if err := m.change(work, primary, txn.SiteChange{Action: txn.SitePromote, Epoch: req.GetEpoch() + 1}); err != nil {
		return nil, err
	}
	return m.state(), nil
}

func (m *Manager) checkTakeover(req *pb.TakeoverRequest, end lsn.Position) error {
	st := m.o.Store.Site()
	switch {
	case st.Role != queue.SiteReplica || st.Lineage.String() != req.GetLineage() || st.Epoch != req.GetEpoch():
		return fmt.Errorf("%w: site %s is not a replica in epoch %d", ErrRole, m.o.Name, req.GetEpoch())
	case end.LSN <= st.CanceledLSN:
		return fmt.Errorf("%w: it was canceled", ErrSwitch)
	}
	return nil
}

// awaitRecord waits until all records up to a position of the primary are applied.
func (m *Manager) awaitRecord(ctx context.Context, at lsn.Position) error {
	for {
		m.mu.Lock()
		p, changed := m.puller, m.pulls
		m.mu.Unlock()
		if p != nil {
			err := p.awaitRecord(ctx, at)
			if err == nil || errors.Is(err, ErrDiverged) || ctx.Err() != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%w: the replica has not received record %v in time", ErrSwitch, at)
		}
	}
}

// CancelTakeover makes this site refuse takeovers up to an end of the primary's log, and returns the state of this
// site. The refusal is committed before the response.
func (m *Manager) CancelTakeover(ctx context.Context, req *pb.CancelTakeoverRequest) (*pb.SiteState, error) {
	primary, err := m.active()
	if err != nil {
		return nil, err
	}
	if err := m.lockRole(ctx); err != nil { // waits until a promotion in progress is completed
		return nil, err
	}
	defer m.unlockRole()
	st := m.o.Store.Site()
	end := positionFromProto(req.GetEnd())
	switch {
	case st.Lineage.String() != req.GetLineage():
		return nil, fmt.Errorf("%w: lineage of site %s is %s", ErrRole, m.o.Name, st.Lineage)
	case st.Epoch < req.GetEpoch(): // this site could become a replica in that epoch and then take over
		return nil, fmt.Errorf("%w: site %s has not followed epoch %d yet", ErrRole, m.o.Name, req.GetEpoch())
	case st.Role == queue.SiteReplica && st.Epoch == req.GetEpoch() && st.CanceledLSN < end.LSN:
		if err := m.change(ctx, primary, txn.SiteChange{Action: txn.SiteCancel, Upstream: end}); err != nil {
			return nil, err
		}
	}
	return m.state(), nil
}

// Promoted is the result of an unplanned promotion.
type Promoted struct {
	Epoch  uint64
	Origin lsn.Position
	// Progress is the last known progress of the site before the promotion.
	Progress Progress
}

// Promote makes this replica or stopped primary the primary. Transactions that this site has not received are
// lost. Unless force is set, Promote returns ErrPrimaryAnswers if the other site responds and is a primary.
func (m *Manager) Promote(ctx context.Context, reason string, force bool) (Promoted, error) {
	primary, err := m.active()
	if err != nil {
		return Promoted{}, err
	}
	if err := m.lockRole(ctx); err != nil {
		return Promoted{}, err
	}
	defer m.unlockRole()
	st := m.o.Store.Site()
	if st.Role != queue.SiteReplica && st.Role != queue.SiteStopped {
		return Promoted{}, fmt.Errorf("%w: site %s is not a replica", ErrRole, m.o.Name)
	}
	epoch := st.Epoch + 1
	if st.Role == queue.SiteStopped {
		epoch++ // the replica may have used the next epoch
	}
	probe, cancel := context.WithTimeout(ctx, probeTimeout)
	_, remote, err := m.ask(probe)
	cancel()
	if err == nil {
		epoch = max(epoch, remote.GetEpoch()+1)
		if remote.GetRole() == pb.SiteRole_SITE_ROLE_PRIMARY && !force {
			return Promoted{}, fmt.Errorf("%w: use `lockstep site switch`, which loses nothing, or --force", ErrPrimaryAnswers)
		}
	}
	progress := m.progress.now(time.Now())
	work := context.WithoutCancel(ctx)
	// A stopped primary lacks no earlier transaction. The replica may have been promoted.
	if err := m.change(work, primary, txn.SiteChange{Action: txn.SitePromote, Epoch: epoch, Lossy: true}); err != nil {
		return Promoted{}, err
	}
	m.log.Warn("site promoted by an operator", zap.String("reason", reason), zap.Uint64("epoch", epoch),
		zap.Stringer("origin", st.Upstream), zap.Uint64("missing_records", progress.LagRecords))
	return Promoted{Epoch: epoch, Origin: m.o.Store.Site().Origin, Progress: progress}, nil
}

// Demoted is the result of a demotion.
type Demoted struct {
	Primary  *pb.SiteState
	Upstream lsn.Position
}

// Demote makes this pair the replica of the other site. address is the address of a node of that site, in addition to
// site.remote; it may be empty. It fails if this pair has transactions that the primary lacks. A former primary saves
// these transactions to a file (apierror.LostError).
func (m *Manager) Demote(ctx context.Context, address string) (Demoted, error) {
	primary, err := m.active()
	switch {
	case err != nil:
		return Demoted{}, err
	case m.o.Name == "" || len(m.o.Remote) == 0:
		return Demoted{}, fmt.Errorf("%w: set site.name, and site.remote to the addresses of the primary", ErrRole)
	}
	if err := m.inNoFleet(); err != nil {
		return Demoted{}, err
	}
	if err := m.lockRole(ctx); err != nil {
		return Demoted{}, err
	}
	defer m.unlockRole()
	if address != "" {
		m.remote.learn([]string{address})
	}
	_, next, err := m.ask(ctx)
	if err != nil {
		return Demoted{}, err
	}
	if next.GetRole() == pb.SiteRole_SITE_ROLE_REPLICA {
		return Demoted{}, fmt.Errorf("%w: site %s is a replica itself", ErrRole, next.GetName())
	}
	f, err := m.baseOfDemotion(ctx, primary, next)
	if err != nil {
		return Demoted{}, err
	}
	open, cancel := context.WithCancel(ctx)
	defer cancel()
	// The primary verifies the position. If the primary has no lineage, it begins one.
	_, first, err := m.open(open, follow{at: f.at})
	if err != nil {
		return Demoted{}, err
	}
	if err := m.adopt(ctx, primary, f, first.GetPrimary()); err != nil {
		return Demoted{}, err
	}
	return Demoted{Primary: first.GetPrimary(), Upstream: f.at}, nil
}

// baseOfDemotion is like base, but first stops a primary that was superseded.
func (m *Manager) baseOfDemotion(
	ctx context.Context, primary *replication.Primary, next *pb.SiteState,
) (follow, error) {
	st := m.o.Store.Site()
	if st.Role == queue.SitePrimary && supersedes(next, &st) {
		if err := m.change(ctx, primary, txn.SiteChange{Action: txn.SiteStop}); err != nil {
			return follow{}, err
		}
	}
	m.lost = lost{} // check again: an operator may have removed the file
	return m.base(next)
}
