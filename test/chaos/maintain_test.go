// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

const (
	// maintainPlans limits the plans in a short run, which starts no plan after maintainTime.
	maintainPlans      = 4
	maintainPlansShort = 1
	maintainTime       = 20 * time.Second
	// maintainFill is the size of the backlog, and maintainRate the copy rate. They determine the duration of a
	// rewrite, during which faults can interrupt it.
	maintainFill = 32 << 20
	maintainRate = "16MiB"
	// planBound limits the duration of a plan after the last kill.
	planBound = 90 * time.Second
	// triggerBound limits the wait for a moment of a plan. If the moment does not occur, the fault is injected anyway.
	triggerBound = 4 * time.Second
)

// plansLength is like length, but counts plans instead of rounds.
func plansLength(t *testing.T) (plans int, limit time.Duration) {
	t.Helper()
	if os.Getenv("LOCKSTEP_CHAOS") != "" {
		return length(t)
	}
	if text := os.Getenv("LOCKSTEP_PLANS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err, "LOCKSTEP_PLANS")
		return n, 24 * time.Hour
	}
	if testing.Short() {
		return maintainPlansShort, maintainTime
	}
	return maintainPlans, maintainTime
}

// maintenanceSettings returns settings with frequent checkpoints and log trimming.
func maintenanceSettings() map[string]string {
	return map[string]string{
		"checkpoint.bytes":    "4MiB",
		"checkpoint.interval": "1s",
		"memory.budget":       "32MiB",
		"wal.keep-bytes":      "16MiB",
		"wal.segment-bytes":   "4MiB",
		"page-size":           "2KiB",
	}
}

// Rolling resizes and compactions under load complete although the active, the standby or both are killed, or etcd is
// stopped, at random moments. Each plan finishes automatically: both nodes have the page size, a single page.db, and
// no incomplete files of a rewrite. Every page is valid, shared messages are stored once, and no acknowledged message
// is lost, duplicated or reordered.
func TestChaosMaintenance(t *testing.T) {
	t.Parallel() // mostly idle
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 3))
	plans, limit := plansLength(t)
	settings := maintenanceSettings()
	// With 64KiB, a standby that was down for long receives a snapshot with the page size of the active.
	settings["wal.segment-bytes"], settings["maintenance.rewrite-rate"] = "1MiB", maintainRate
	settings["wal.keep-bytes"] = []string{"64KiB", "16MiB"}[rng.IntN(2)]
	t.Logf("wal.keep-bytes: %s", settings["wal.keep-bytes"])
	p := start(t, cluster.Options{Settings: settings})
	m := &maintainer{
		killer: killer{t: t, p: p, rng: rng, injected: tally{}}, sizes: [2]uint32{2 << 10, 2 << 10},
		at: map[string]int{}, plans: map[string]int{},
	}
	m.backlog = fillBacklog(t, p, maintainFill, s)
	began := time.Now()
	for done := 0; done < plans && (done == 0 || time.Since(began) < limit); done++ {
		m.w = work(t, p, cluster.WorkloadOptions{
			Prefix: fmt.Sprintf("plan-%d-", done), Seed: s + uint64(done),
			PerSecond: 300,
		})
		m.plan()
		verify(t, p, m.w)
		m.backlog.check(t)
		checkFiles(t, p, m.sizes)
		require.NoError(t, m.w.Cleanup(limited(t)))
	}
	m.asked.Wait()
	m.summary()
	checkOffline(t, p)
}

type maintainer struct {
	killer
	backlog *backlog
	sizes   [2]uint32 // page sizes of A and B

	plans   map[string]int
	retries uint32
	hits    int
	kills   int            // killed processes
	at      map[string]int // faults by phase of the plan
	seen    string         // last phase of the plan
}

// plan runs one plan to its end, and injects faults during it.
func (m *maintainer) plan() {
	t := m.t
	t.Helper()
	inSync(t, m.p)
	acked(t, m.w)
	req := m.request()
	plan, err := admin.New(m.backlog.c).StartPlan(limited(t), req)
	require.NoError(t, err)
	m.w.History().Note("plan %s: %v", plan.GetId(), req)
	for range 1 + m.rng.IntN(6) {
		if m.awaitMoment(plan.GetId()) {
			break
		}
		m.hit()
	}
	plan = ended(t, m.p, plan.GetId())
	require.Equal(t, pb.PlanState_PLAN_STATE_DONE, plan.GetState(), "plan: %s", plan.GetReason())
	require.Len(t, plan.GetDoneNodes(), 2)
	m.retries += plan.GetRetries()
	m.plans[req.GetKind().String()]++
	if size := req.GetPageSize(); size != 0 {
		m.sizes = [2]uint32{size, size}
	}
	t.Logf("%v: %v to %d: done, restarted %d times; so far %d faults, %d kills",
		m.w.History().Now().Round(time.Millisecond), req.GetKind(),
		m.sizes[0], plan.GetRetries(), m.hits, m.kills)
}

// request returns a random plan.
func (m *maintainer) request() *pb.StartPlanRequest {
	req := &pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_COMPACT, SwitchBack: m.rng.IntN(3) == 0}
	if m.rng.IntN(4) > 0 {
		req.Kind = pb.PlanKind_PLAN_KIND_RESIZE
		for req.PageSize == 0 || req.PageSize == m.sizes[0] {
			req.PageSize = []uint32{2 << 10, 4 << 10, 6 << 10, 8 << 10, 16 << 10, 32 << 10}[m.rng.IntN(6)]
		}
	}
	return req
}

// awaitMoment waits for a random moment of the plan. over reports whether the plan ended first.
func (m *maintainer) awaitMoment(id string) (over bool) {
	label, holds := m.moment()
	ctx, cancel := context.WithTimeout(m.t.Context(), triggerBound)
	defer cancel()
	// An error only means that the moment did not occur: any other moment is acceptable.
	_ = m.p.Wait(ctx, label, func(a, b *pb.GetStatusResponse) bool {
		if plan := planOf(a, b); plan.GetId() == id && admin.PlanEnded(plan) {
			over = true
			return true
		}
		m.seen = location(a, b)
		return holds(a, b)
	})
	m.w.History().Note("moment: %s; over: %v", label, over)
	return over
}

func (m *maintainer) moment() (label string, holds func(a, b *pb.GetStatusResponse) bool) {
	inState := func(s pb.PlanState) func(a, b *pb.GetStatusResponse) bool {
		return func(a, b *pb.GetStatusResponse) bool { return planOf(a, b).GetState() == s }
	}
	switch rng := m.rng.IntN(100); {
	case rng < 45:
		part := m.rng.Float64()
		return fmt.Sprintf("copied %.2f", part),
			func(a, b *pb.GetStatusResponse) bool { return copied(a, part) || copied(b, part) }
	case rng < 60: // after the copy: sync, verify, renames
		return "finishing", func(a, b *pb.GetStatusResponse) bool { return finishing(a) || finishing(b) }
	case rng < 75:
		return "catching up", inState(pb.PlanState_PLAN_STATE_CATCHING_UP)
	case rng < 85:
		return "switching", inState(pb.PlanState_PLAN_STATE_SWITCHING)
	default:
		until := time.Now().Add(time.Duration(m.rng.Int64N(int64(1500 * time.Millisecond))))
		return "any time", func(_, _ *pb.GetStatusResponse) bool { return time.Now().After(until) }
	}
}

// copied reports whether a node is rewriting and has copied the given fraction of its page file.
func copied(s *pb.GetStatusResponse, part float64) bool {
	p := s.GetMaintenance().GetProgress()
	return s.GetMaintenance().GetOperation() == "rewrite" && p.GetPhase() == "copy" && p.GetTotalBytes() > 0 &&
		float64(p.GetDoneBytes()) >= part*float64(p.GetTotalBytes())
}

func finishing(s *pb.GetStatusResponse) bool {
	switch s.GetMaintenance().GetProgress().GetPhase() {
	case "finish", "verify", "done":
		return s.GetMaintenance().GetOperation() == "rewrite"
	default:
		return false
	}
}

// planOf returns the plan that the active reports. If no node is active, it returns the plan of a or, if nil, of b.
func planOf(a, b *pb.GetStatusResponse) *pb.Plan {
	for _, s := range []*pb.GetStatusResponse{a, b} {
		if s.GetRole() == pb.Role_ROLE_ACTIVE || s.GetRole() == pb.Role_ROLE_ACTIVE_ALONE {
			return s.GetPlan()
		}
	}
	if a.GetPlan() != nil {
		return a.GetPlan()
	}
	return b.GetPlan()
}

// roles returns the active and the standby. If no node reports the active role, it returns A as the active.
func (m *maintainer) roles() (active, standby *cluster.Node) {
	active = m.p.A
	ctx, cancel := context.WithTimeout(m.t.Context(), triggerBound)
	defer cancel()
	_ = m.p.Wait(ctx, "an active", func(a, b *pb.GetStatusResponse) bool {
		if serves(b) {
			active = m.p.B
		}
		return serves(a) || serves(b)
	})
	return active, m.p.Other(active)
}

func serves(s *pb.GetStatusResponse) bool {
	return s.GetRole() == pb.Role_ROLE_ACTIVE || s.GetRole() == pb.Role_ROLE_ACTIVE_ALONE
}

// location returns the phase of the plan, for the summary.
func location(a, b *pb.GetStatusResponse) string {
	for _, s := range []*pb.GetStatusResponse{a, b} {
		if s.GetMaintenance().GetOperation() == "rewrite" {
			return "rewrite: " + s.GetMaintenance().GetProgress().GetPhase()
		}
	}
	return planOf(a, b).GetState().String()
}

// hit injects a fault, and repairs it.
func (m *maintainer) hit() {
	m.hits++
	m.at[m.seen]++
	active, standby := m.roles()
	switch rng := m.rng.IntN(100); {
	case rng < 35:
		m.end("active", active)
		m.pause(800 * time.Millisecond)
		m.start(active)
	case rng < 45:
		m.end("standby, for long", standby)
		m.pause(3 * time.Second)
		m.checkpoint(active)
		m.pause(time.Second)
		m.start(standby)
	case rng < 60:
		m.end("standby", standby)
		m.pause(400 * time.Millisecond)
		m.start(standby)
	case rng < 70: // kill it again before it has recovered
		m.end("standby, twice", standby)
		m.start(standby)
		m.pause(300 * time.Millisecond)
		m.end("", standby)
		m.start(standby)
	case rng < 80:
		m.end("active, then its successor", active)
		m.pause(500 * time.Millisecond)
		m.start(active)
		m.pause(200 * time.Millisecond)
		m.end("", standby)
		m.pause(100 * time.Millisecond)
		m.start(standby)
	case rng < 90:
		m.end("both", active)
		m.pause(20 * time.Millisecond)
		m.end("", standby)
		m.start(standby)
		m.pause(50 * time.Millisecond)
		m.start(active)
	default:
		m.withoutEtcd([]*cluster.Node{nil, nil, active, standby}[m.rng.IntN(4)])
	}
}

// withoutEtcd stops etcd for a while. If victim is not nil, it kills this node in the meantime.
func (m *maintainer) withoutEtcd(victim *cluster.Node) {
	m.injected.count("etcd")
	m.w.History().Note("stop etcd")
	require.NoError(m.t, m.p.StopEtcd())
	m.pause(2 * time.Second)
	if victim != nil {
		m.end("a node without etcd", victim)
	}
	m.pause(time.Second)
	m.w.History().Note("start etcd")
	require.NoError(m.t, m.p.StartEtcd(limited(m.t)))
	if victim != nil {
		m.start(victim)
	}
}

// end kills a node and counts it.
func (m *maintainer) end(label string, n *cluster.Node) {
	m.kill(n)
	m.kills++
	if label != "" {
		m.injected.count(label)
	}
}

func (m *maintainer) summary() {
	m.t.Logf("plans done: %v, steps restarted: %d; faults: %d: %v; processes killed: %d", m.plans, m.retries, m.hits,
		map[string]int(m.injected), m.kills)
	snapshots := 0
	for _, n := range m.p.Nodes() {
		log, err := os.ReadFile(n.LogFile())
		require.NoError(m.t, err)
		snapshots += strings.Count(string(log), "snapshot installed")
	}
	m.t.Logf("snapshots installed: %d", snapshots)
	m.t.Logf("phases of the plans in which faults were injected: %v", m.at)
}

// ended waits until a plan has ended and the active reports it.
func ended(t *testing.T, p *cluster.Pair, id string) (plan *pb.Plan) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), planBound)
	defer cancel()
	var last *pb.Plan
	err := p.Wait(ctx, "the end of the plan", func(a, b *pb.GetStatusResponse) bool {
		for _, s := range []*pb.GetStatusResponse{a, b} {
			if serves(s) && s.GetPlan().GetId() == id {
				last = s.GetPlan()
				if admin.PlanEnded(last) {
					plan = last
				}
			}
		}
		return plan != nil
	})
	require.NoError(t, err, "plan: %v", last)
	return plan
}
