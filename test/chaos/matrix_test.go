// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

const (
	// matrixFill is the amount that a rewrite copies at matrixRate. The rewrite takes some seconds, so that faults can
	// interrupt it.
	matrixFill = 16 << 20
	matrixRate = "4MiB"
	// faultTime is the duration of a temporary fault: longer than every timeout of the pair.
	faultTime = 3500 * time.Millisecond
	// briefFault is the duration of a fault that ends before a node detects it.
	briefFault = 100 * time.Millisecond
)

// matrix is one pair that runs all cells one after another.
type matrix struct {
	p   *cluster.Pair
	c   *client.Client
	rng *rand.Rand
	// active and standby are the nodes with these roles at the start of the cell.
	active, standby *cluster.Node
	// background tracks work that a phase has started and does not wait for.
	background sync.WaitGroup
	injected   tally
}

// phase is a state of the pair. begin brings the pair into the state, and returns while the pair is in it.
type phase struct {
	name  string
	begin func(m *matrix, t *testing.T)
}

// fault injects a failure, repairs it, and reports whether it took effect on a running process, link or disk.
type fault struct {
	name   string
	inject func(m *matrix, t *testing.T) (injected bool)
}

func phases() []phase {
	return []phase{
		{"steady", func(*matrix, *testing.T) {}},
		{"standby lost", func(m *matrix, t *testing.T) { m.kill(t, m.standby) }},
		{"catching up", (*matrix).waitCatchUp},
		{"snapshot transfer", (*matrix).snapshotTransfer},
		{"resize", func(m *matrix, t *testing.T) { m.rewriting(t, pb.PlanKind_PLAN_KIND_RESIZE) }},
		{"compact", func(m *matrix, t *testing.T) { m.rewriting(t, pb.PlanKind_PLAN_KIND_COMPACT) }},
		{"switchover", (*matrix).switchover},
		{"activation", func(m *matrix, t *testing.T) { m.kill(t, m.active) }},
	}
}

func faults() []fault {
	active := func(m *matrix) *cluster.Node { return m.active }
	standby := func(m *matrix) *cluster.Node { return m.standby }
	return []fault{
		{"active killed", killed(active)},
		{"standby killed", killed(standby)},
		{"both killed", killed(active, standby)},
		{"active frozen", frozen(faultTime, active)},
		{"active frozen briefly", frozen(briefFault, active)},
		{"standby frozen", frozen(faultTime, standby)},
		{"link cut", cut(func(m *matrix) { m.p.Cut() }, (*matrix).heal)},
		{
			"link cut, data in transit lost",
			cut(func(m *matrix) { m.p.Cut() }, func(m *matrix) { m.p.LoseCut() }),
		},
		{"all data from the active is held", cut(func(m *matrix) { m.p.CutFrom(m.active) }, (*matrix).heal)},
		{"all data from the standby is held", cut(func(m *matrix) { m.p.CutFrom(m.standby) }, (*matrix).heal)},
		{"etcd stopped", etcdStopped},
		{
			"active isolated from etcd",
			cut(func(m *matrix) { m.p.CutFromEtcd(m.active) }, func(m *matrix) { m.p.HealToEtcd(m.active) }),
		},
		{
			"standby isolated from etcd",
			cut(func(m *matrix) { m.p.CutFromEtcd(m.standby) }, func(m *matrix) { m.p.HealToEtcd(m.standby) }),
		},
	}
}

// killed returns a fault that kills nodes. A node that is down because of the phase is killed during startup.
func killed(principal ...func(m *matrix) *cluster.Node) func(m *matrix, t *testing.T) bool {
	return func(m *matrix, t *testing.T) bool {
		for _, n := range principal {
			m.startIfDown(t, n(m))
			require.NoError(t, n(m).Kill())
		}
		return true
	}
}

// frozen returns a fault that suspends a process for the given time.
func frozen(d time.Duration, principal func(m *matrix) *cluster.Node) func(m *matrix, t *testing.T) bool {
	return func(m *matrix, t *testing.T) bool {
		m.startIfDown(t, principal(m))
		require.NoError(t, principal(m).Pause())
		<-time.After(d) // duration of the fault, not a wait for an event
		require.NoError(t, principal(m).Wake())
		return true
	}
}

// cut returns a fault that holds back traffic on some links. It requires traffic in the meantime, so a node that is
// down is started.
func cut(begin, end func(m *matrix)) func(m *matrix, t *testing.T) bool {
	return func(m *matrix, t *testing.T) bool {
		before := m.p.Held()
		begin(m)
		for _, n := range m.p.Nodes() {
			m.startIfDown(t, n)
		}
		<-time.After(faultTime) // duration of the fault
		held := m.p.Held() - before
		end(m)
		return held > 0
	}
}

// etcdStopped is a fault that stops the coordinator for faultTime.
func etcdStopped(m *matrix, t *testing.T) bool {
	require.NoError(t, m.p.StopEtcd())
	<-time.After(faultTime) // duration of the fault
	require.NoError(t, m.p.StartEtcd(limited(t)))
	return true
}

func (m *matrix) heal() { m.p.Heal() }

func (m *matrix) startIfDown(t *testing.T, n *cluster.Node) {
	t.Helper()
	if !n.Running() {
		require.NoError(t, n.Start())
	}
}

// cell is a cell of the matrix: a fault in a phase.
type cell struct {
	phase phase
	fault fault
}

// cells returns all cells if LOCKSTEP_MATRIX=all. By default, it returns each fault once, in random phases; with
// -short, each phase once, with random faults.
func (m *matrix) cells(list []fault) (cells []cell) {
	if os.Getenv("LOCKSTEP_MATRIX") == "all" {
		for _, p := range phases() {
			for _, f := range list {
				cells = append(cells, cell{p, f})
			}
		}
		return cells
	}
	m.rng.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	ph := phases()
	for i, f := range list {
		if i%len(ph) == 0 {
			m.rng.Shuffle(len(ph), func(i, j int) { ph[i], ph[j] = ph[j], ph[i] })
		}
		cells = append(cells, cell{ph[i%len(ph)], f})
	}
	if testing.Short() {
		cells = cells[:len(ph)]
	}
	return cells
}

// After each fault in each phase (see cells), the pair recovers automatically, and the checker finds no violation. A
// fault without an effect fails the test.
func TestFaultMatrix(t *testing.T) {
	t.Parallel() // mostly idle
	s := seed(t)
	m := &matrix{rng: rand.New(rand.NewPCG(s, 5)), injected: tally{}}
	defer func() { t.Log("injected faults:\n" + m.injected.String()) }()
	settings := maintenanceSettings()
	settings["wal.segment-bytes"], settings["wal.keep-bytes"] = "1MiB", "64KiB"
	settings["maintenance.rewrite-rate"] = matrixRate
	settings["disk.stall-timeout"] = matrixStall
	breakable := cluster.CanBreakDisks(binary)
	m.p = start(t, cluster.Options{Links: true, Disk: breakable, Settings: settings})
	backlog := fillBacklog(t, m.p, matrixFill, s)
	m.c = backlog.c
	list := faults()
	if breakable {
		list = append(list, diskFaults()...)
	}
	for _, c := range m.cells(list) {
		if !t.Run(c.phase.name+"/"+c.fault.name, func(t *testing.T) { m.cell(t, c.phase, c.fault) }) {
			t.FailNow() // later cells would fail in the same way
		}
	}
	backlog.check(t)
	checkOffline(t, m.p)
}

func (m *matrix) cell(t *testing.T, ph phase, f fault) {
	w := work(t, m.p, cluster.WorkloadOptions{Seed: m.rng.Uint64(), PerSecond: 500})
	m.active, m.standby = inSync(t, m.p)
	acked(t, w)
	ph.begin(m, t)
	<-time.After(time.Duration(m.rng.Int64N(int64(80 * time.Millisecond)))) // an arbitrary moment
	injected := f.inject(m, t)
	m.repair(t)
	require.True(t, injected, "the fault had no effect")
	m.injected.count(f.name)
	acked(t, w)
	m.background.Wait()
	verify(t, m.p, w)
	require.NoError(t, w.Cleanup(limited(t)))
}

// repair starts stopped nodes, waits until the pair is in sync, and cancels a plan that a phase started.
func (m *matrix) repair(t *testing.T) {
	t.Helper()
	for _, n := range m.p.Nodes() {
		require.False(t, n.Ended(), "node %s exited unexpectedly, see %s", n.Name, n.LogFile())
		if !n.Running() {
			require.NoError(t, n.Start())
		}
	}
	require.Eventually(t, func() bool {
		active, _ := inSync(t, m.p)
		s, err := active.Status(limited(t))
		require.NoError(t, err)
		if s.GetPlan() == nil || admin.PlanEnded(s.GetPlan()) {
			return true
		}
		_, _ = admin.New(m.c).CancelPlan(limited(t)) // the plan may end, or the role may change, concurrently
		return false
	}, bound, 20*time.Millisecond)
}

func (m *matrix) kill(t *testing.T, n *cluster.Node) {
	t.Helper()
	if err := n.Kill(); !errors.Is(err, cluster.ErrNotRunning) {
		require.NoError(t, err)
	}
}

// waitCatchUp: the standby was briefly down, and has just returned.
func (m *matrix) waitCatchUp(t *testing.T) {
	m.kill(t, m.standby)
	require.NoError(t, m.p.WaitRole(limited(t), m.active, pb.Role_ROLE_ACTIVE_ALONE))
	m.checkpoint(t)
	require.NoError(t, m.standby.Start())
}

// snapshotTransfer: the standby was down until the active's log no longer contained its position, and has just
// returned.
func (m *matrix) snapshotTransfer(t *testing.T) {
	s, err := m.standby.Status(limited(t))
	require.NoError(t, err)
	has := s.GetStore().GetLogEnd().GetLsn()
	m.kill(t, m.standby)
	require.NoError(t, m.p.WaitRole(limited(t), m.active, pb.Role_ROLE_ACTIVE_ALONE))
	filler, err := m.c.NewProducer(t.Context(), client.ProducerOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, filler.Close()) }()
	_, _, err = admin.New(m.c).CreateQueue(limited(t), "filler", admin.CreateQueueOptions{})
	require.NoError(t, err)
	body := make([]byte, 256<<10)
	require.Eventually(t, func() bool {
		for range 8 {
			_, err := filler.Publish(limited(t), "filler", client.Message{Body: body})
			require.NoError(t, err)
		}
		m.checkpoint(t)
		s, err := m.active.Status(limited(t))
		require.NoError(t, err)
		return s.GetStore().GetLogFirstLsn() > has+1
	}, bound, 10*time.Millisecond)
	_, err = admin.New(m.c).DeleteQueue(limited(t), "filler", false)
	require.NoError(t, err)
	require.NoError(t, m.standby.Start())
}

func (m *matrix) checkpoint(t *testing.T) {
	t.Helper()
	_, err := pb.NewAdminServiceClient(m.active.Conn()).Checkpoint(limited(t), &pb.CheckpointRequest{})
	require.NoError(t, err)
}

// rewriting: the standby is copying its page file.
func (m *matrix) rewriting(t *testing.T, kind pb.PlanKind) {
	req := &pb.StartPlanRequest{Kind: kind}
	if kind == pb.PlanKind_PLAN_KIND_RESIZE {
		req.PageSize = uint32(2<<10) << m.rng.IntN(5)
	}
	_, err := admin.New(m.c).StartPlan(limited(t), req)
	require.NoError(t, err)
	require.NoError(t, m.p.Wait(limited(t), "a rewrite under way", func(a, b *pb.GetStatusResponse) bool {
		return copied(a, 0.01) || copied(b, 0.01)
	}))
}

// switchover: a switchover was just requested.
func (m *matrix) switchover(t *testing.T) {
	active := m.active
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	m.background.Go(func() {
		defer cancel()
		// whether it succeeds depends on the fault
		_, _ = pb.NewAdminServiceClient(active.Conn()).Switchover(ctx, &pb.SwitchoverRequest{})
	})
}
