// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"

	"github.com/lockstep-mq/lockstep/server/maintenance"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/vfs/faultfs"
)

// gate stops rewrites: while it is closed, a rewrite hangs before its first write to the new page file.
type gate struct {
	fs *faultfs.FS

	mu      sync.Mutex
	open    chan struct{}
	reached chan struct{}
}

func newGate() *gate {
	g := &gate{fs: faultfs.New(vfs.OS()), open: make(chan struct{}), reached: make(chan struct{})}
	close(g.open)
	g.fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpWrite && strings.HasSuffix(op.Name, "page.db_new") {
			g.mu.Lock()
			open := g.open
			select {
			case <-g.reached:
			default:
				close(g.reached)
			}
			g.mu.Unlock()
			<-open
		}
		return nil
	})
	return g
}

// shut closes the gate; the channel tells when a rewrite has come to it.
func (g *gate) shut() (reached <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open, g.reached = make(chan struct{}), make(chan struct{})
	return g.reached
}

func (g *gate) release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}

// upkeepPair is a pair with messages in it whose rewrites can be stopped.
type upkeepPair struct {
	t     *testing.T
	nodes [2]*testNode
	gates [2]*gate
}

func startUpkeepPair(t *testing.T) *upkeepPair {
	t.Helper()
	etcd := startEtcd(t)
	p := &upkeepPair{t: t, gates: [2]*gate{newGate(), newGate()}}
	for i, name := range []string{"a", "b"} {
		c := settingsOfPair(t, name, etcd)
		c.Backup.Path = t.TempDir()
		p.nodes[i] = startOn(t, c, p.gates[i].fs)
		t.Cleanup(p.gates[i].release) // before the node is stopped
		if i == 0 {
			p.nodes[0].waitFor(pb.Role_ROLE_ACTIVE_ALONE)
		}
	}
	p.nodes[1].waitFor(pb.Role_ROLE_STANDBY)
	p.nodes[0].waitFor(pb.Role_ROLE_ACTIVE)
	require.Eventually(t, func() bool { // the active has heard where its standby is
		for _, n := range p.nodes[0].status().GetPair().GetNodes() {
			if n.GetNodeId() == p.nodes[1].ready.NodeID {
				return n.GetAddress() != ""
			}
		}
		return false
	}, patience, 5*time.Millisecond)
	fill(p.nodes[0])
	return p
}

// restart starts a node again at its old address, so that it is found.
func (p *upkeepPair) restart(i int) {
	p.t.Helper()
	c := p.nodes[i].config
	c.Listen = p.nodes[i].ready.Address
	p.gates[i].release()
	p.nodes[i].stop()
	p.nodes[i] = startOn(p.t, c, p.gates[i].fs)
}

// fill publishes what a larger page suits better.
func fill(n *testNode) {
	n.t.Helper()
	n.createQueue("q")
	for i := range 20 {
		var batch []string
		for k := range 10 {
			batch = append(batch, fmt.Sprintf("%04d-%s", i*10+k, strings.Repeat("x", 3000)))
		}
		n.publish("q", batch...)
	}
}

// same waits until both nodes hold the same, and gives the number of messages.
func (p *upkeepPair) same() (messages uint64) {
	p.t.Helper()
	require.Eventually(p.t, func() bool {
		x, err := p.nodes[0].admin.GetDigest(p.t.Context(), &pb.GetDigestRequest{})
		require.NoError(p.t, err)
		y, err := p.nodes[1].admin.GetDigest(p.t.Context(), &pb.GetDigestRequest{})
		require.NoError(p.t, err)
		messages = x.GetMessages()
		return x.GetLsn() == y.GetLsn() && x.GetContent() == y.GetContent()
	}, patience, 20*time.Millisecond, "both nodes end alike")
	return messages
}

func (n *testNode) pageSize() uint32 {
	n.t.Helper()
	return n.status().GetStore().GetPageSize()
}

// rewrite asks a node for a rewrite and waits for its end.
func (n *testNode) rewrite(req *pb.RewriteRequest) (result *pb.RewriteResult, progress int, err error) {
	n.t.Helper()
	s, err := n.upkeep.Rewrite(n.t.Context(), req)
	require.NoError(n.t, err)
	for {
		resp, err := s.Recv()
		if err != nil {
			return nil, progress, err
		}
		if resp.GetResult() != nil {
			return resp.GetResult(), progress, nil
		}
		progress++
	}
}

func (n *testNode) scan() *pb.ScanResult {
	n.t.Helper()
	s, err := n.upkeep.Scan(n.t.Context(), &pb.ScanRequest{})
	require.NoError(n.t, err)
	for {
		resp, err := s.Recv()
		require.NoError(n.t, err)
		if resp.GetResult() != nil {
			return resp.GetResult()
		}
	}
}

// load publishes to whichever node is active until stop is called, which gives what was acknowledged.
func (p *upkeepPair) load() (stop func() []string) {
	ctx, cancel := context.WithCancel(p.t.Context())
	acknowledged := make(chan string, 100_000)
	nodes := p.nodes[:]
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := uint64(1); ctx.Err() == nil; i++ {
			publishAnywhere(ctx, nodes, i, acknowledged)
		}
	}()
	var got []string
	var once sync.Once
	stop = func() []string {
		once.Do(func() {
			cancel()
			<-done
			close(acknowledged)
			for b := range acknowledged {
				got = append(got, b)
			}
		})
		return got
	}
	p.t.Cleanup(func() { stop() })
	return stop
}

// publishAnywhere tries both nodes, with the same producer sequence, until one answers. One of them may be gone for
// good.
func publishAnywhere(ctx context.Context, nodes []*testNode, sequence uint64, acknowledged chan<- string) {
	body := fmt.Sprint(sequence)
	for try := 0; ctx.Err() == nil; try++ {
		_, err := nodes[try%2].queues.Publish(ctx, &pb.PublishRequest{
			Queue: "q", Messages: batch(body), Producer: &pb.Producer{Id: "p", Sequence: sequence},
		})
		if err == nil {
			acknowledged <- body
			return
		}
		if c := status.Code(err); c != codes.FailedPrecondition && c != codes.Unavailable && c != codes.Canceled {
			nodes[0].t.Errorf("publish %d: %v", sequence, err)
			return
		}
	}
}

// holds checks that everything acknowledged is there once, behind what fill has published.
func (n *testNode) holds(acknowledged []string) {
	n.t.Helper()
	q, err := n.queues.GetQueue(n.t.Context(), &pb.GetQueueRequest{Name: "q"})
	require.NoError(n.t, err)
	seen := map[string]int{}
	c := n.consume("q", 100_000)
	for len(seen) < int(q.GetQueue().GetMessages()) {
		resp, err := c.stream.Recv()
		require.NoError(n.t, err)
		for _, b := range bodies(resp.GetMessages()) {
			seen[b]++
			require.Equal(n.t, 1, seen[b], "%.20s is there twice", b)
		}
	}
	for _, b := range acknowledged {
		require.Equal(n.t, 1, seen[b], "%s was acknowledged and is lost", b)
	}
	require.GreaterOrEqual(n.t, len(seen), 200+len(acknowledged))
}

func ptr[T any](v T) *T { return &v }

// TestSettingsSurviveFailover: settings are the pair's: asked of any node, there on both, and after a takeover and a
// restart.
func TestSettingsSurviveFailover(t *testing.T) {
	p := startUpkeepPair(t)
	a, b := p.nodes[0], p.nodes[1]
	before, err := a.upkeep.GetSettings(t.Context(), &pb.GetSettingsRequest{})
	require.NoError(t, err)
	require.Equal(t, uint32(2048), before.GetSettings().GetPageSizeCurrent())
	require.Equal(t, uint32(32768), before.GetSettings().GetPageSizeMax())
	require.Equal(t, uint32(3), before.GetSettings().GetBackupKeepGenerations())
	require.Equal(t, uint32(20), before.GetSettings().GetAutotuneMinGainPercent())
	require.Empty(t, before.GetSettings().GetAutotuneWindow())

	changed, err := b.upkeep.UpdateSettings(t.Context(), &pb.UpdateSettingsRequest{
		PageSizeMax: ptr(uint32(65536)), BackupKeepGenerations: ptr(uint32(7)), BackupPath: ptr("/backups"),
		AutotuneWindow: ptr("02:00-05:00"),
	})
	require.NoError(t, err, "the standby passes it on")
	require.Equal(t, uint32(65536), changed.GetSettings().GetPageSizeMax())
	for name, bad := range map[string]*pb.UpdateSettingsRequest{
		"page size":   {PageSizeMax: ptr(uint32(3000))},
		"generations": {BackupKeepGenerations: ptr(uint32(0))},
		"window":      {AutotuneWindow: ptr("night")},
		"path":        {BackupPath: ptr("relative")},
		"gain":        {AutotuneMinGainPercent: ptr(uint32(100))},
	} {
		_, err := b.upkeep.UpdateSettings(t.Context(), bad)
		require.Equal(t, codes.InvalidArgument, status.Code(err), name)
		require.ErrorIs(t, kind(err), maintenance.ErrSetting, name)
	}
	r := b.scan()
	require.Greater(t, r.GetRecommended(), uint32(2048))
	check := func(n *testNode) {
		t.Helper()
		require.Eventually(t, func() bool {
			s, err := n.upkeep.GetSettings(t.Context(), &pb.GetSettingsRequest{})
			require.NoError(t, err)
			return s.GetSettings().GetPageSizeRecommended() == r.GetRecommended() &&
				s.GetSettings().GetBackupPath() == "/backups" &&
				s.GetSettings().GetBackupKeepGenerations() == 7 && s.GetSettings().GetAutotuneWindow() == "02:00-05:00"
		}, patience, 5*time.Millisecond)
	}
	check(a)
	check(b)
	a.stop()
	b.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	check(b)
	p.restart(0)
	p.nodes[0].waitFor(pb.Role_ROLE_STANDBY)
	check(p.nodes[0])
}

// TestStandbyRewrites: the standby that rewrites stays in sync under load; meanwhile no second rewrite, no switchover,
// and none at all on the active.
func TestStandbyRewrites(t *testing.T) {
	p := startUpkeepPair(t)
	a, b := p.nodes[0], p.nodes[1]
	stop := p.load()
	dry, _, err := b.rewrite(&pb.RewriteRequest{PageSize: 16384, DryRun: true})
	require.NoError(t, err)
	require.Equal(t, uint32(2048), dry.GetPageSizeBefore())
	require.Equal(t, uint32(16384), dry.GetPageSizeAfter())
	require.NotZero(t, dry.GetNeededBytes())
	require.Greater(t, dry.GetAvailableBytes(), dry.GetNeededBytes())

	_, _, err = a.rewrite(&pb.RewriteRequest{PageSize: 16384})
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorIs(t, kind(err), maintenance.ErrRole)

	reached := p.gates[1].shut()
	var done sync.WaitGroup
	var result *pb.RewriteResult
	var rewriteErr error
	done.Go(func() { result, _, rewriteErr = b.rewrite(&pb.RewriteRequest{PageSize: 16384}) })
	<-reached

	require.Equal(t, "rewrite", b.status().GetMaintenance().GetOperation())
	_, _, err = b.rewrite(&pb.RewriteRequest{PageSize: 4096})
	require.Equal(t, codes.AlreadyExists, status.Code(err))
	require.ErrorIs(t, kind(err), maintenance.ErrBusy)
	for _, n := range p.nodes {
		_, err = n.admin.Switchover(t.Context(), &pb.SwitchoverRequest{})
		require.ErrorIs(t, kind(err), failover.ErrSwitchover, n.config.Node.Name)
		require.ErrorContains(t, err, "rewrite")
	}
	before := a.status().GetStore().GetCommitLsn()
	require.Eventually(t, func() bool { return a.status().GetStore().GetCommitLsn() > before+100 }, patience,
		5*time.Millisecond,
		"commits go on, each of them durable on the standby as well")
	require.Equal(t, pb.Role_ROLE_STANDBY, b.role())
	require.Equal(t, pb.Role_ROLE_ACTIVE, a.role())
	require.Equal(t, "in-sync", a.status().GetStandby().GetState())
	require.Less(t, b.status().GetStore().GetAppliedLsn(), before+100, "nothing is applied meanwhile")

	p.gates[1].release()
	done.Wait()
	require.NoError(t, rewriteErr)
	require.Equal(t, uint32(16384), result.GetPageSizeAfter())
	require.Less(t, result.GetFileBytesAfter(), result.GetFileBytesBefore()*2)
	require.Equal(t, uint32(16384), b.pageSize())
	require.Equal(t, uint32(2048), a.pageSize())
	require.Nil(t, b.status().GetMaintenance())
	acknowledged := stop()
	p.same()

	old, err := b.upkeep.DropOld(t.Context(), &pb.DropOldRequest{})
	require.NoError(t, err)
	require.NotZero(t, old.GetBytes())
	again, err := b.upkeep.DropOld(t.Context(), &pb.DropOldRequest{})
	require.NoError(t, err)
	require.Zero(t, again.GetBytes())
	_, err = a.admin.Switchover(t.Context(), &pb.SwitchoverRequest{})
	require.NoError(t, err)
	b.waitFor(pb.Role_ROLE_ACTIVE)
	b.holds(acknowledged)
}

// TestTakeoverDuringRewrite: the active goes away while its standby rewrites. The rewrite is dropped and the standby
// takes over.
func TestTakeoverDuringRewrite(t *testing.T) {
	p := startUpkeepPair(t)
	a, b := p.nodes[0], p.nodes[1]
	stop := p.load()
	reached := p.gates[1].shut()
	var done sync.WaitGroup
	var rewriteErr error
	done.Go(func() { _, _, rewriteErr = b.rewrite(&pb.RewriteRequest{PageSize: 16384}) })
	<-reached
	before := a.status().GetStore().GetCommitLsn()
	require.Eventually(t, func() bool { return a.status().GetStore().GetCommitLsn() > before+50 }, patience,
		5*time.Millisecond)
	a.stop()
	began := time.Now()
	b.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	t.Logf("active after %s, with a rewrite that hung in its disk write", time.Since(began))
	done.Wait()
	require.Equal(t, codes.Aborted, status.Code(rewriteErr))
	require.ErrorIs(t, kind(rewriteErr), maintenance.ErrGaveWay)
	require.Equal(t, uint32(2048), b.pageSize())
	before = b.status().GetStore().GetCommitLsn()
	require.Eventually(t, func() bool { return b.status().GetStore().GetCommitLsn() > before+50 }, patience,
		5*time.Millisecond)
	acknowledged := stop()
	b.holds(acknowledged)
	p.gates[1].release()
	_, _, err := b.rewrite(&pb.RewriteRequest{PageSize: 16384})
	require.ErrorIs(t, kind(err), maintenance.ErrRole, "it is active now")
}

// TestCancelRewrite: when the caller goes away, the rewrite is dropped and the standby catches up.
func TestCancelRewrite(t *testing.T) {
	p := startUpkeepPair(t)
	b := p.nodes[1]
	reached := p.gates[1].shut()
	ctx, cancel := context.WithCancel(t.Context())
	s, err := b.upkeep.Rewrite(ctx, &pb.RewriteRequest{PageSize: 16384})
	require.NoError(t, err)
	<-reached
	cancel()
	for err == nil {
		_, err = s.Recv()
	}
	require.Eventually(t, func() bool { return b.status().GetMaintenance() == nil }, patience, 5*time.Millisecond)
	p.gates[1].release()
	require.Equal(t, uint32(2048), b.pageSize())
	p.nodes[0].publish("q", "one more")
	p.same()
	require.Eventually(t, func() bool { // what is left of the first one goes in the background
		_, _, err = b.rewrite(&pb.RewriteRequest{PageSize: 8192})
		return err == nil
	}, patience, 10*time.Millisecond)
	require.Equal(t, uint32(8192), b.pageSize())
}

// plan gives the plan as a node knows it.
func (n *testNode) plan() *pb.Plan { return n.status().GetPlan() }

func (p *upkeepPair) waitForPlan(n int, state pb.PlanState) *pb.Plan {
	p.t.Helper()
	var plan *pb.Plan
	require.Eventually(p.t, func() bool {
		plan = p.nodes[n].plan()
		return plan.GetState() == state
	}, 2*patience, 10*time.Millisecond, "the plan should be %s; it is %s", state, plan)
	return plan
}

// TestRollingResize: both nodes get the recommended page size under load, and the roles are as before.
func TestRollingResize(t *testing.T) {
	p := startUpkeepPair(t)
	a, b := p.nodes[0], p.nodes[1]
	_, err := a.upkeep.StartPlan(t.Context(), &pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESIZE})
	require.ErrorIs(t, kind(err), maintenance.ErrNoRecommendation)
	_, err = a.upkeep.StartPlan(t.Context(), &pb.StartPlanRequest{})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	want := b.scan().GetRecommended()
	stop := p.load()
	p.gates[1].shut() // until it was seen that it rewrites
	started, err := b.upkeep.StartPlan(t.Context(),
		&pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESIZE, SwitchBack: true})
	require.NoError(t, err, "the standby passes it on")
	require.Equal(t, a.ready.NodeID, started.GetPlan().GetFirstActive())
	require.Equal(t, want, started.GetPlan().GetPageSize())
	_, err = a.upkeep.StartPlan(t.Context(), &pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_COMPACT})
	require.Equal(t, codes.AlreadyExists, status.Code(err))

	watch, err := b.upkeep.WatchPlan(t.Context(), &pb.WatchPlanRequest{})
	require.NoError(t, err)
	states := map[pb.PlanState]bool{}
	var last *pb.Plan
	for {
		resp, err := watch.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		last = resp.GetPlan()
		require.Equal(t, started.GetPlan().GetId(), last.GetId())
		if states[last.GetState()] = true; last.GetState() == pb.PlanState_PLAN_STATE_REWRITING {
			p.gates[1].release()
		}
	}
	require.Equal(t, pb.PlanState_PLAN_STATE_DONE, last.GetState(), last.GetReason())
	require.ElementsMatch(t, []string{a.ready.NodeID, b.ready.NodeID}, last.GetDoneNodes())
	require.True(t, states[pb.PlanState_PLAN_STATE_REWRITING])
	require.NotNil(t, last.GetEndedAt())
	for _, n := range p.nodes {
		require.Equal(t, want, n.pageSize())
	}
	a.waitFor(pb.Role_ROLE_ACTIVE)
	b.waitFor(pb.Role_ROLE_STANDBY)
	acknowledged := stop()
	p.same()
	a.holds(acknowledged)
	_, err = a.upkeep.CancelPlan(t.Context(), &pb.CancelPlanRequest{})
	require.Equal(t, codes.NotFound, status.Code(err))
}

// TestPlanSurvivesRestarts: the standby is stopped in the middle of its rewrite, and later the active in the middle of
// the other's.
func TestPlanSurvivesRestarts(t *testing.T) {
	p := startUpkeepPair(t)
	reached := p.gates[1].shut()
	started, err := p.nodes[0].upkeep.StartPlan(t.Context(),
		&pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESIZE, PageSize: 8192})
	require.NoError(t, err)
	<-reached
	p.waitForPlan(0, pb.PlanState_PLAN_STATE_REWRITING)
	require.Equal(t, started.GetPlan().GetId(), p.nodes[1].status().GetMaintenance().GetPlanId())
	secondReached := p.gates[0].shut()
	p.restart(1) // the standby: its rewrite is begun again
	// Now node b gets done, the roles are switched, and node a comes to its gate. The active goes away: node a takes
	// over.
	<-secondReached
	p.waitForPlan(1, pb.PlanState_PLAN_STATE_REWRITING)
	require.Equal(t, uint32(8192), p.nodes[1].pageSize())
	p.nodes[1].stop()
	p.nodes[0].waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	plan := p.waitForPlan(0, pb.PlanState_PLAN_STATE_WAITING)
	require.Equal(t, []string{p.nodes[1].ready.NodeID}, plan.GetDoneNodes())
	require.Equal(t, uint32(2048), p.nodes[0].pageSize())
	p.gates[0].release()
	p.restart(1)
	plan = p.waitForPlan(0, pb.PlanState_PLAN_STATE_DONE)
	require.Len(t, plan.GetDoneNodes(), 2)
	require.Equal(t, started.GetPlan().GetId(), plan.GetId())
	for _, n := range p.nodes {
		require.Equal(t, uint32(8192), n.pageSize())
	}
	require.Equal(t, uint64(200), p.same())
}

// TestCancelPlan: the rewrite that is under way is dropped, and another plan can begin.
func TestCancelPlan(t *testing.T) {
	p := startUpkeepPair(t)
	a, b := p.nodes[0], p.nodes[1]
	reached := p.gates[1].shut()
	_, err := a.upkeep.StartPlan(t.Context(), &pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_RESIZE, PageSize: 8192})
	require.NoError(t, err)
	<-reached
	cancelled, err := b.upkeep.CancelPlan(t.Context(), &pb.CancelPlanRequest{})
	require.NoError(t, err)
	require.Equal(t, pb.PlanState_PLAN_STATE_CANCELLED, cancelled.GetPlan().GetState())
	require.Eventually(t, func() bool { return b.status().GetMaintenance() == nil }, patience, 5*time.Millisecond)
	p.gates[1].release()
	require.Equal(t, uint32(2048), b.pageSize())
	require.Equal(t, pb.Role_ROLE_ACTIVE, a.role())
	_, err = a.upkeep.StartPlan(t.Context(), &pb.StartPlanRequest{Kind: pb.PlanKind_PLAN_KIND_COMPACT})
	require.NoError(t, err)
	p.waitForPlan(0, pb.PlanState_PLAN_STATE_DONE)
	require.Equal(t, pb.Role_ROLE_ACTIVE, b.role(), "without switch back")
	p.same()
}
