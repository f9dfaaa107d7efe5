// SPDX-License-Identifier: Apache-2.0

//go:build unix

package sites

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/simnet"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// kind is the kind of a fault or of a request of an operator.
type kind uint8

const (
	switchSite      kind = iota // an operator moves the primary role to the other site
	kill                        // a node is killed, and started after the duration
	killBoth                    // both nodes of a site are killed, and started after the duration
	stop                        // a node is stopped, and started after the duration
	switchover                  // an operator hands over the active role within a pair
	siteCut                     // the sites do not reach each other
	siteOneWay                  // traffic in one direction between the sites is dropped
	siteReset                   // all connections between the sites break
	siteSlow                    // messages between the sites take up to 400 ms, with at least 20 kB/s
	pairCut                     // the nodes of a pair do not reach each other
	nodeCut                     // a node does not reach the other site
	coordinator                 // a node does not reach its coordinator
	coordinatorDown             // no node of a site reaches the coordinator
	clientCut                   // the clients do not reach a node
	lateTakeover                // a node receives the takeovers of all earlier switches again
	kinds
)

var kindNames = [kinds]string{
	"switch", "kill", "kill-both", "stop", "switchover", "site-cut", "site-one-way", "site-reset", "site-slow", "pair-cut",
	"node-cut", "coordinator", "coordinator-down", "client-cut", "late-takeover",
}

const (
	// switchesDone is the label of switches that succeeded.
	switchesDone = "switches that succeeded"
	// takeoversRefused is the label of late takeovers that were refused.
	takeoversRefused = "late takeovers refused"
	// stopPoll is the interval at which a switch is observed. It is shorter than a round trip between the sites.
	stopPoll = 10 * time.Millisecond
)

func (k kind) String() string { return kindNames[k] }

type fault struct {
	At   time.Duration // since the start
	Kind kind
	// Primary selects the site that is the primary when the fault begins. Active selects the active node of the site.
	Primary, Active bool
	For             time.Duration
	Rand            uint64 // source of further random choices
}

func (f fault) String() string {
	return fmt.Sprintf("%v at %v for %v (primary %t, active %t, %d)", f.Kind, f.At, f.For, f.Primary, f.Active, f.Rand)
}

// drawPlan generates faults. About a third of them are switches.
func drawPlan(rng *rand.Rand, length time.Duration) []fault {
	plan := make([]fault, 4+rng.IntN(9))
	for i := range plan {
		f := fault{
			At: time.Duration(rng.Int64N(int64(length))), Kind: kind(rng.IntN(int(kinds))), Primary: rng.IntN(2) == 0,
			Active: rng.IntN(3) > 0, Rand: rng.Uint64N(1 << 32),
		}
		if rng.IntN(4) == 0 {
			f.Kind = switchSite
		}
		if i > 0 && rng.IntN(2) == 0 { // many bugs require two faults within the time of a switch
			f.At = plan[rng.IntN(i)].At + time.Duration(rng.Int64N(int64(200*time.Millisecond)))
		}
		f.For = time.Duration(rng.Int64N(int64([]time.Duration{
			300 * time.Millisecond, 1500 * time.Millisecond, 8 * time.Second,
		}[rng.IntN(3)])))
		f.At, f.For = f.At.Round(time.Microsecond), f.For.Round(time.Microsecond)
		plan[i] = f
	}
	slices.SortStableFunc(plan, func(a, b fault) int { return cmp.Compare(a.At, b.At) })
	return plan
}

// ending is the end of a fault.
type ending struct {
	at  time.Time
	end func()
}

// execute executes a plan, and ends all faults.
func (w *world) execute(ctx context.Context, plan []fault) {
	start := time.Now()
	var endings []ending
	endUntil := func(t time.Time) {
		for len(endings) > 0 && !endings[0].at.After(t) {
			sleep(ctx, time.Until(endings[0].at))
			endings[0].end()
			endings = endings[1:]
		}
	}
	for _, f := range plan {
		at := start.Add(f.At)
		endUntil(at)
		sleep(ctx, time.Until(at))
		end := w.begin(ctx, f)
		if end == nil {
			continue
		}
		endings = append(endings, ending{time.Now().Add(f.For), func() {
			end()
			w.note("end of %v", f.Kind)
		}})
		slices.SortStableFunc(endings, func(a, b ending) int { return a.at.Compare(b.at) })
	}
	endUntil(time.Now().Add(time.Hour))
	w.heal()
	w.running.Wait()
	w.note("healed")
}

// heal removes the effects of all faults.
func (w *world) heal() {
	w.eachLink(func(a, b *member) {
		for _, way := range simnet.Both(a.host, b.host) {
			w.Net.Change(way, func(l *simnet.Link) { *l = simnet.Link{Delay: betweenSites} })
		}
	})
	for _, s := range w.sites {
		w.Net.SetCut(s.members[0].host, s.members[1].host, false)
		w.setDelay(s.members[0], s.members[1], simpair.Latency)
		for _, m := range s.members {
			w.Net.SetCut(m.host, w.Host("client"), false)
			w.restart(m)
			m.node.SetCoordinatorReachable(true)
		}
	}
}

// begin begins a fault. It returns the function that ends it; nil for a fault without a duration or without an effect.
func (w *world) begin(ctx context.Context, f fault) (end func()) {
	s, m, other := w.target(ctx, f)
	w.note("%v of %s for %v", f.Kind, m.name, f.For)
	w.counted(f.Kind.String())
	switch f.Kind {
	case switchSite:
		w.requestSwitch(m, f.Rand)
		return nil
	case kill:
		return w.down(m, m.kill)
	case killBoth:
		first, second := w.down(m, m.kill), w.down(other, other.kill)
		return func() { first(); second() }
	case stop:
		return w.down(m, func() {
			if err := m.node.Stop(); err != nil {
				w.T.Errorf("seed %d: %s stopped: %v", w.seed, m.name, err)
			}
		})
	case switchover:
		w.requestSwitchover(m)
		return nil
	case lateTakeover:
		w.repeatTakeovers(m)
		return nil
	case pairCut:
		w.Net.SetCut(m.host, other.host, true)
		return func() { w.Net.SetCut(m.host, other.host, false) }
	case nodeCut:
		return w.cutFromSite(m)
	case coordinator:
		return w.withoutCoordinator(m)
	case coordinatorDown:
		first, second := w.withoutCoordinator(m), w.withoutCoordinator(other)
		return func() { first(); second() }
	case clientCut:
		w.Net.SetCut(m.host, w.Host("client"), true)
		return func() { w.Net.SetCut(m.host, w.Host("client"), false) }
	default:
		return w.beginBetween(s, f)
	}
}

// beginBetween begins a fault of the link between the sites.
func (w *world) beginBetween(s *site, f fault) (end func()) {
	change := func(change func(from, to *member, l *simnet.Link)) {
		w.eachLink(func(a, b *member) {
			w.Net.Change(simnet.Way{From: a.host, To: b.host}, func(l *simnet.Link) { change(a, b, l) })
			w.Net.Change(simnet.Way{From: b.host, To: a.host}, func(l *simnet.Link) { change(b, a, l) })
		})
	}
	switch f.Kind {
	case siteReset:
		w.eachLink(func(a, b *member) { w.Net.ResetLink(a.host, b.host) })
		return nil
	case siteSlow:
		delay := time.Duration(f.Rand % uint64(400*time.Millisecond))
		rate := 20_000 << (f.Rand % 8)
		change(func(_, _ *member, l *simnet.Link) { l.Delay, l.BytesPerSecond = delay, rate })
		return func() {
			change(func(_, _ *member, l *simnet.Link) { l.Delay, l.BytesPerSecond = betweenSites, 0 })
		}
	default: // siteCut, siteOneWay
		affects := func(from *member) bool { return f.Kind == siteCut || slices.Contains(s.members[:], from) }
		change(func(from, _ *member, l *simnet.Link) { l.Cut = l.Cut || affects(from) })
		return func() { change(func(_, _ *member, l *simnet.Link) { l.Cut = false }) }
	}
}

// target returns the site and the node that a fault affects, and the other node of the site.
func (w *world) target(ctx context.Context, f fault) (s *site, m, other *member) {
	primary, replica := w.primary(ctx)
	if primary == nil {
		primary, replica = w.sites[f.Rand%2], w.sites[1-f.Rand%2]
	}
	if s = primary; !f.Primary && f.Kind != switchSite {
		s = replica
	}
	m, other = w.active(ctx, s)
	if m == nil {
		m, other = s.members[0], s.members[1]
	}
	if !f.Active && f.Kind != switchSite && f.Kind != switchover {
		m, other = other, m
	}
	return s, m, other
}

func (m *member) kill() { m.node.Kill() }

// down calls end, which ends the process of m. The returned function restarts the process.
func (w *world) down(m *member, end func()) (restart func()) {
	if !m.up {
		return func() {}
	}
	m.up = false
	end()
	return func() { w.restart(m) }
}

func (w *world) restart(m *member) {
	if !m.up {
		m.node, m.up = m.node.Restart(), true
	}
}

func (w *world) cutFromSite(m *member) (end func()) {
	cut := func(cut bool) {
		w.eachLink(func(a, b *member) {
			if a == m || b == m {
				w.Net.SetCut(a.host, b.host, cut)
			}
		})
	}
	cut(true)
	return func() { cut(false) }
}

func (w *world) withoutCoordinator(m *member) (end func()) {
	m.node.SetCoordinatorReachable(false)
	return func() { m.node.SetCoordinatorReachable(true) }
}

// requestSwitch requests a switch from a node, without waiting for the response.
func (w *world) requestSwitch(m *member, rng uint64) {
	timeout := 200 * time.Millisecond << (rng % 6)
	w.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), switchLimit)
		defer cancel()
		observe, ended := context.WithCancel(ctx)
		w.running.Go(func() { w.recordStops(observe, m) })
		resp, err := w.siteService(m).SwitchSite(ctx, &pb.SwitchSiteRequest{Timeout: durationpb.New(timeout)})
		ended()
		if err != nil {
			w.note("switch by %s failed: %v", m.name, err)
			sleep(ctx, time.Duration(rng%8)*stopPoll)
			for _, s := range w.sites {
				w.repeatTakeovers(s.members[0])
				w.repeatTakeovers(s.members[1])
			}
			return
		}
		w.note("switched by %s: %v", m.name, resp)
		w.counted(switchesDone)
	})
}

// recordStops records the takeovers that a primary may have requested, until ctx ends.
func (w *world) recordStops(ctx context.Context, m *member) {
	last := uint64(0)
	for ; ctx.Err() == nil; sleep(ctx, stopPoll) {
		call, cancel := context.WithTimeout(ctx, callLimit)
		resp, err := w.siteService(m).GetSite(call, &pb.GetSiteRequest{Local: true})
		cancel()
		st := resp.GetSite()
		if err != nil || st.GetRole() != pb.SiteRole_SITE_ROLE_STOPPED || st.GetApplied().GetLsn() == last {
			continue
		}
		last = st.GetApplied().GetLsn()
		w.mu.Lock()
		w.takeovers = append(w.takeovers, &pb.TakeoverRequest{
			Lineage: st.GetLineage(), Epoch: st.GetEpoch(), End: st.GetApplied(), Timeout: durationpb.New(callLimit),
		})
		w.mu.Unlock()
	}
}

// repeatTakeovers sends the recorded takeovers to a node, without waiting for the responses.
func (w *world) repeatTakeovers(m *member) {
	w.mu.Lock()
	requests := slices.Clone(w.takeovers)
	w.mu.Unlock()
	for _, req := range requests {
		w.running.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), callLimit)
			defer cancel()
			resp, err := w.siteService(m).Takeover(ctx, req)
			if err == nil {
				w.note("late takeover of epoch %d by %s: %v", req.GetEpoch(), m.name, resp)
				return
			}
			w.counted(takeoversRefused)
		})
	}
}

// requestSwitchover requests a switchover within a pair, without waiting for the response.
func (w *world) requestSwitchover(m *member) {
	w.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), switchoverLimit)
		defer cancel()
		_, err := pb.NewAdminServiceClient(w.conns[m.address]).Switchover(ctx, &pb.SwitchoverRequest{})
		w.note("switchover by %s: %v", m.name, err)
	})
}
