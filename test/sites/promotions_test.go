// SPDX-License-Identifier: Apache-2.0

//go:build unix

package sites

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
	"github.com/lockstep-mq/lockstep/test/simnet"
)

func TestPromotions(t *testing.T) {
	runSeeds(t, []string{
		"killed", "cut off", "cut off from the other site", "not failed", "forced", "follows", "diverged", "lost some",
		"reported a lag", "reported no lag", "no status received", switchesDone,
	}, simulatePromotion)
}

// promotion is an unplanned promotion, with the status before it.
type promotion struct {
	before        *pb.GetSiteResponse // of the replica
	result        *pb.PromoteSiteResponse
	offset        uint64 // of the old primary
	promoted, old *site
}

// simulatePromotion promotes the replica after a failure of the primary site, and checks that the loss does not
// exceed the loss that the status of the replica reported.
func simulatePromotion(w *world) (err error) {
	w.start()
	ctx := w.T.Context()
	rng := rand.New(rand.NewPCG(w.seed, 3))
	l, err := startLoad(ctx, w)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	sleep(ctx, time.Duration(rng.Int64N(int64(2*time.Second))))
	if rng.IntN(2) == 0 {
		m, _ := w.active(ctx, w.sites[0])
		w.requestSwitch(m, 5)
		w.running.Wait()
	}
	old, promoted, err := w.settledRoles(ctx)
	if err != nil {
		return err
	}
	p := &promotion{old: old, promoted: promoted, offset: w.siteOf(ctx, old).GetSite().GetLogicalOffset()}
	w.disturb(rng, promoted)
	sleep(ctx, time.Duration(rng.Int64N(int64(3*time.Second))))
	quiet := rng.IntN(3) == 0
	if quiet { // the old primary can follow if the replica receives everything in time
		l.stopProducing()
		sleep(ctx, time.Duration(rng.Int64N(int64(time.Second))))
	}
	w.fail(rng, p)
	sleep(ctx, time.Duration(rng.Int64N(int64(time.Second)<<rng.IntN(3))))
	if err := w.promote(ctx, p); err != nil {
		return err
	}
	if quiet {
		if err := l.startProducing(ctx); err != nil {
			return err
		}
	}
	sleep(ctx, time.Duration(rng.Int64N(int64(3*time.Second))))
	w.heal()
	w.note("healed")
	return w.checkPromotion(ctx, l, p)
}

// settledRoles waits for a primary with a connected replica. Unlike settled, it does not wait until the replica has
// everything.
func (w *world) settledRoles(ctx context.Context) (primary, replica *site, err error) {
	for end := time.Now().Add(recoveryLimit); time.Now().Before(end); sleep(ctx, poll) {
		if primary, replica = w.primary(ctx); primary != nil && w.siteOf(ctx, replica).GetReplication().GetConnected() {
			return primary, replica, nil
		}
	}
	return nil, nil, fmt.Errorf("no primary with a replica within %v:\n%s", recoveryLimit, w.describe())
}

// disturb makes the links slow in most cases, so that the replica lags.
func (w *world) disturb(rng *rand.Rand, replica *site) {
	if rng.IntN(2) == 0 { // received transactions are applied late
		d := time.Duration(rng.Int64N(int64(200 * time.Millisecond)))
		w.note("latency within %s %v", replica.name, d)
		w.setDelay(replica.members[0], replica.members[1], d)
	}
	if rng.IntN(3) == 0 {
		return
	}
	delay, rate := time.Duration(rng.Int64N(int64(300*time.Millisecond))), 5_000<<rng.IntN(8)
	w.note("link with a latency of %v and %d bytes per second", delay, rate)
	w.eachLink(func(a, b *member) {
		for _, way := range simnet.Both(a.host, b.host) {
			w.Net.Change(way, func(l *simnet.Link) { l.Delay, l.BytesPerSecond = delay, rate })
		}
	})
}

// fail kills the primary site, cuts it off completely or only from the other site, or leaves it as it is. It may also
// kill the active of the replica.
func (w *world) fail(rng *rand.Rand, p *promotion) {
	cutSites := func() { w.eachLink(func(a, b *member) { w.Net.SetCut(a.host, b.host, true) }) }
	label := ""
	switch rng.IntN(5) {
	case 0, 1:
		label = "killed"
		for _, m := range p.old.members {
			w.down(m, m.kill)
		}
	case 2:
		label = "cut off"
		cutSites()
		for _, m := range p.old.members {
			w.Net.SetCut(m.host, w.Host("client"), true)
		}
	case 3:
		label = "cut off from the other site"
		cutSites()
	default:
		label = "not failed"
	}
	if rng.IntN(4) == 0 { // the new active of the replica may have received less
		label += ", active of the replica killed"
		m, _ := w.active(w.T.Context(), p.promoted)
		restart := w.down(m, m.kill)
		sleep(w.T.Context(), time.Duration(rng.Int64N(int64(time.Second))))
		restart()
	}
	w.note("primary site %s is %s", p.old.name, label)
	w.counted(label)
}

// promote reads the status of the replica, and promotes it.
func (w *world) promote(ctx context.Context, p *promotion) error {
	for end := time.Now().Add(recoveryLimit); p.before.GetReplication() == nil; sleep(ctx, poll) {
		if p.before = w.siteOf(ctx, p.promoted); time.Now().After(end) {
			return fmt.Errorf("no status of the replica:\n%s", w.describe())
		}
	}
	w.note("status before the promotion: %v", p.before)
	force := false
	for end := time.Now().Add(recoveryLimit); time.Now().Before(end); sleep(ctx, poll) {
		m, _ := w.active(ctx, p.promoted)
		if m == nil {
			continue
		}
		call, cancel := context.WithTimeout(ctx, promotionLimit)
		resp, err := w.siteService(m).PromoteSite(call, &pb.PromoteSiteRequest{Reason: "test", Force: force})
		cancel()
		if err != nil {
			w.note("promotion of %s, force %t: %v", m.name, force, err)
			force = force || status.Code(err) == codes.FailedPrecondition
			continue
		}
		p.result = resp
		w.note("promoted %s: %v", m.name, resp)
		if force {
			w.counted("forced")
		}
		return nil
	}
	return fmt.Errorf("not promoted within %v:\n%s", recoveryLimit, w.describe())
}

// checkPromotion waits until the old primary follows or stays stopped, and checks the contents.
func (w *world) checkPromotion(ctx context.Context, l *load, p *promotion) error {
	follows, err := w.awaitOld(ctx, p)
	if err != nil {
		return err
	}
	ended := time.Now()
	l.stopProducing()
	w.note("producers stopped")
	ctx, cancel := context.WithTimeout(ctx, finishLimit)
	defer cancel()
	stored, err := l.stored(ctx)
	if err != nil {
		return err
	}
	lost, err := w.checkStored(l, p, stored)
	if err != nil {
		return err
	}
	if err := w.checkLost(l, p, lost, ended); err != nil {
		return err
	}
	switch {
	case follows && lost > 0:
		return fmt.Errorf("%s follows, although %d of its transactions are lost", p.old.name, lost)
	case !follows:
		w.counted("diverged")
		return w.checkDiverged(ctx, p)
	}
	w.counted("follows")
	if _, _, err := w.settled(ctx); err != nil {
		return err
	}
	return w.equal(ctx)
}

// awaitOld waits until the old primary is a replica, or has remained stopped for several attempts to follow.
func (w *world) awaitOld(ctx context.Context, p *promotion) (follows bool, err error) {
	stopped := 0
	for end := time.Now().Add(recoveryLimit); time.Now().Before(end); sleep(ctx, time.Second) {
		st := w.siteOf(ctx, p.old)
		switch st.GetSite().GetRole() {
		case pb.SiteRole_SITE_ROLE_REPLICA:
			return true, nil
		case pb.SiteRole_SITE_ROLE_STOPPED:
			if stopped++; stopped == 10 {
				return false, nil
			}
		default:
		}
	}
	return false, fmt.Errorf("the old primary neither stops nor follows:\n%s", w.describe())
}

// by reports whether a node of a site acknowledged a message.
func (s *site) by(m *published) bool {
	return slices.ContainsFunc(s.members[:], func(n *member) bool { return n.address == m.Address })
}

// checkStored compares the acknowledged messages with the stored messages. It returns the number of transactions of
// the old primary that are lost.
func (w *world) checkStored(l *load, p *promotion, stored map[id]cursor) (lost int, err error) {
	for _, err := range l.failed {
		return 0, fmt.Errorf("publish failed: %w", err)
	}
	origin := p.result.GetOrigin().GetLsn() + p.offset
	gone := map[uint64]bool{}
	for _, m := range l.ackedSoFar() {
		at, is := stored[id{m.producer, m.n}]
		complete := m.LSN <= origin || p.promoted.by(&m)
		switch {
		case is && at != (cursor{m.queue, m.Sequence}):
			return 0, fmt.Errorf("message %v is stored at %v", &m, at)
		case is && !complete:
			return 0, fmt.Errorf("message %v is stored, but the new primary begins after %d", &m, origin)
		case !is && complete:
			return 0, fmt.Errorf("message %v is lost, the new primary begins after %d", &m, origin)
		case !is:
			gone[m.LSN] = true
		}
	}
	return len(gone), nil
}

// checkLost compares the lost transactions with the status before the promotion.
func (w *world) checkLost(l *load, p *promotion, lost int, ended time.Time) error {
	r := p.before.GetReplication()
	if lost > 0 {
		w.counted("lost some")
	}
	if r.GetHeardAt() == nil {
		w.counted("no status received")
		return nil
	}
	heard := r.GetHeardAt().AsTime()
	origin, early := p.result.GetOrigin().GetLsn()+p.offset, map[uint64]bool{}
	for _, m := range l.ackedSoFar() {
		if p.old.by(&m) && m.LSN > origin && !m.done.After(heard) {
			early[m.LSN] = true
			if m.LSN > r.GetPrimaryEnd().GetLsn()+p.offset {
				return fmt.Errorf("%v was acknowledged before %v, when the primary had only %v", &m, heard, r.GetPrimaryEnd())
			}
		}
	}
	w.note("%d transactions are lost, %d of them acknowledged before %v; reported %d", lost, len(early), heard,
		r.GetLagRecords())
	if uint64(len(early)) > r.GetLagRecords() {
		return fmt.Errorf("%d transactions acknowledged before %v are lost, the status reported %d", len(early), heard,
			r.GetLagRecords())
	}
	if r.GetLagRecords() > 0 {
		w.counted("reported a lag")
		return nil
	}
	w.counted("reported no lag")
	l.mu.Lock()
	defer l.mu.Unlock()
	for c, at := range l.confirmed {
		for _, d := range l.delivered[c] {
			if !at.After(heard) && d.After(at) && d.Before(ended) {
				return fmt.Errorf("%v: delivered at %v, after its acknowledgement was confirmed at %v, before %v", c, d, at,
					heard)
			}
		}
	}
	return nil
}

// checkDiverged checks that the old primary can neither follow nor serve.
func (w *world) checkDiverged(ctx context.Context, p *promotion) error {
	m, _ := w.active(ctx, p.old)
	if m == nil {
		return fmt.Errorf("no active node of %s:\n%s", p.old.name, w.describe())
	}
	_, err := w.siteService(m).DemoteSite(ctx, &pb.DemoteSiteRequest{})
	if r := reasonOf(err); r != pb.ErrorReason_ERROR_REASON_SITE_DIVERGED {
		return fmt.Errorf("demotion of the old primary: %v: %w", r, err)
	}
	_, err = pb.NewQueueServiceClient(w.conns[m.address]).Publish(ctx, &pb.PublishRequest{
		Queue: loadQueue(0), Messages: []*pb.Message{{Body: []byte("no")}},
	})
	if r := reasonOf(err); r != pb.ErrorReason_ERROR_REASON_REPLICA {
		return fmt.Errorf("publish to the old primary: %v: %w", r, err)
	}
	return nil
}

// reasonOf returns the reason of an error of a node.
func reasonOf(err error) pb.ErrorReason {
	for _, d := range status.Convert(err).Details() {
		if info, is := d.(*errdetails.ErrorInfo); is {
			return reason.Parse(info.GetReason())
		}
	}
	return pb.ErrorReason_ERROR_REASON_UNSPECIFIED
}
