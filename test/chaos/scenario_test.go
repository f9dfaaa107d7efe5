// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	clientadmin "github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// sideLoad publishes to one node directly with the generated stub, regardless of the node's role, like a client that
// has not detected a failover.
type sideLoad struct {
	node  *cluster.Node
	queue string
}

// publish sends one message that is not part of a workload, and returns the node's response.
func (s sideLoad) publish(ctx context.Context) error {
	_, err := pb.NewQueueServiceClient(s.node.Conn()).Publish(ctx, &pb.PublishRequest{
		Queue: s.queue, Messages: []*pb.Message{{Body: []byte("stray")}},
		Producer: &pb.Producer{Id: uuid.NewString(), Epoch: 1, Sequence: 1},
	})
	return err
}

// newQueue creates a queue in addition to the workload's. messages returns the queue's current number of messages.
func newQueue(t *testing.T, p *cluster.Pair, name string) (messages func() uint64) {
	t.Helper()
	c, err := p.NewClient(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, _, err = clientadmin.New(c).CreateQueue(limited(t), name, clientadmin.CreateQueueOptions{})
	require.NoError(t, err)
	return func() uint64 {
		q, err := clientadmin.New(c).GetQueue(limited(t), name)
		require.NoError(t, err)
		return q.Messages
	}
}

// The active is stopped (SIGSTOP) under load, and the standby takes over. When the old active resumes, with requests
// in its sockets, it acknowledges neither these nor later requests, and becomes a standby. (INV-2: the standby's acks
// are missing. INV-4: the standby no longer accepts the old active's records.)
func TestPausedActiveAcknowledgesNothing(t *testing.T) {
	p := start(t, cluster.Options{})
	messages := newQueue(t, p, "stray")
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	for round := range 2 {
		old, next := inSync(t, p)
		acked(t, w)
		before := messages()
		was, is := eventsOf(t, old), eventsOf(t, next)
		since := w.History().Now()
		require.NoError(t, old.Pause())
		// These requests wait in the sockets of the stopped process.
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		var waiting sync.WaitGroup
		answers := make(chan error, 64)
		for range cap(answers) / 2 {
			waiting.Go(func() { answers <- sideLoad{old, "stray"}.publish(ctx) })
		}
		took := ackedSince(t, w, since, old)
		t.Logf("round %d: pause of the active to the next acknowledged publish: %v", round, took)
		leads := is.takeovers(silent()...)
		require.NoError(t, old.Wake())
		// These requests arrive after the old active has resumed, before and while it detects the change.
		for range cap(answers) / 2 {
			waiting.Go(func() { answers <- sideLoad{old, "stray"}.publish(ctx) })
		}
		waiting.Wait()
		cancel()
		close(answers)
		for err := range answers {
			require.Error(t, err, "the old active acknowledged a write after it was replaced")
		}
		require.GreaterOrEqual(t, was.role(failover.RoleFenced, failover.CodeReplaced).Number("term"), leads.Number("term"))
		was.role(failover.RoleStandby, failover.CodeInSync)
		require.Equal(t, before, messages(), "a write that only the old active received is in the store")
	}
	verify(t, p, w)
}

// A suspended standby blocks acknowledgements only until the active removes it from the in-sync set (INV-3). After it
// resumes, it is added again.
func TestPausedStandbyIsDropped(t *testing.T) {
	p := start(t, cluster.Options{})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	active, standby := inSync(t, p)
	acked(t, w)
	leads, follows := eventsOf(t, active), eventsOf(t, standby)
	require.NoError(t, standby.Pause())
	leads.dropped(silent()...)
	acked(t, w)
	require.NoError(t, standby.Wake())
	follows.role(failover.RoleStandby, failover.CodeInSync)
	leads.role(failover.RoleActive, failover.CodeStandbyInSync)
	verify(t, p, w)
}

// If records from the active to its standby are dropped, and the active is then killed, no message that only the
// active has was acknowledged (INV-2).
func TestAcksWaitForTheStandby(t *testing.T) {
	t.Parallel() // mostly idle
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 2))
	p := start(t, cluster.Options{Links: true, Settings: map[string]string{
		// Long enough that no standby is dropped before the kill, even on a busy machine.
		"failover.timeout": "3s", "failover.drop-timeout": "2500ms",
	}})
	w := work(t, p, cluster.WorkloadOptions{Seed: s})
	for range 3 {
		active, _ := inSync(t, p)
		acked(t, w)
		p.Cut()
		// Shorter than the drop timeout, but long enough for an active that does not wait for its standby.
		<-time.After(50*time.Millisecond + time.Duration(rng.Int64N(int64(300*time.Millisecond))))
		since := w.History().Now()
		require.NoError(t, active.Kill())
		p.LoseCut()
		ackedSince(t, w, since, active)
		require.NoError(t, active.Start())
	}
	verify(t, p, w)
}

// If the link between the nodes is cut, but both reach the coordinator, the active drops the standby before the
// standby would take over. The active continues alone, and adds the standby again when the link is restored.
func TestLinkCutDropsStandby(t *testing.T) {
	p := start(t, cluster.Options{Links: true, Settings: dropsFirst()})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	active, standby := inSync(t, p)
	acked(t, w)
	leads, follows := eventsOf(t, active), eventsOf(t, standby)
	p.Cut()
	leads.dropped(silent()...)
	acked(t, w)
	p.Heal()
	leads.role(failover.RoleActive, failover.CodeStandbyInSync)
	follows.never(logSize(t, standby), activeRoles()...)
	verify(t, p, w)
}

// If the active reaches neither its standby nor the coordinator, it blocks, and the standby takes over. After the
// links are restored, the old active follows.
func TestIsolatedActiveStopsServing(t *testing.T) {
	p := start(t, cluster.Options{Links: true})
	messages := newQueue(t, p, "stray")
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	old, next := inSync(t, p)
	acked(t, w)
	was, is := eventsOf(t, old), eventsOf(t, next)
	p.CutFromEtcd(old)
	p.Cut()
	since := w.History().Now()
	leads := is.takeovers(silent()...)
	ackedSince(t, w, since, old)
	err := sideLoad{old, "stray"}.publish(limited(t))
	require.Equal(t, codes.Unavailable, status.Code(err),
		"an isolated node acknowledged a write: %v", err)
	was.never(logSize(t, old), failover.RoleActiveAlone)
	p.Heal()
	p.HealToEtcd(old)
	require.Equal(t, leads.Number("term"), was.role(failover.RoleFenced, failover.CodeReplaced).Number("term"))
	verify(t, p, w)
	require.Zero(t, messages())
}

// While both nodes are running, no write fails when the coordinator is lost. After it returns, failover works again.
func TestEtcdStopped(t *testing.T) {
	p := start(t, cluster.Options{Settings: steady()})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	active, standby := inSync(t, p)
	acked(t, w)
	require.NoError(t, p.StopEtcd())
	// Wait longer than every lease and timeout: the pair detects the loss, and continues.
	require.NoError(t, p.Wait(limited(t), "a lost coordinator on both nodes", func(a, b *pb.GetStatusResponse) bool {
		return a != nil && b != nil && !a.GetPair().GetCoordinatorReachable() && !b.GetPair().GetCoordinatorReachable()
	}))
	until := time.Now().Add(4 * time.Second)
	for time.Now().Before(until) {
		acked(t, w)
	}
	s, err := active.Status(limited(t))
	require.NoError(t, err)
	require.Equal(t, pb.Role_ROLE_ACTIVE, s.GetRole(), s.GetReason())
	require.NoError(t, p.StartEtcd(limited(t)))
	require.NoError(t, p.Wait(limited(t), "a reachable coordinator on both nodes", func(a, b *pb.GetStatusResponse) bool {
		return a.GetPair().GetCoordinatorReachable() && b.GetPair().GetCoordinatorReachable()
	}))
	since := w.History().Now()
	takes := eventsOf(t, standby)
	require.NoError(t, active.Kill())
	ackedSince(t, w, since, active)
	takes.takeovers(gone()...)
	require.NoError(t, active.Start())
	verify(t, p, w)
}

// Without etcd and its standby, the active cannot exclude a takeover, so writes fail with UNAVAILABLE. If etcd
// returns first, the active continues alone. If the standby returns first, it does not find the active until etcd
// returns. Nothing is lost in either case.
func TestEtcdAndStandbyLost(t *testing.T) {
	t.Parallel() // mostly idle
	for _, back := range []string{"etcd", "standby"} {
		t.Run(back+" returns first", func(t *testing.T) {
			p := start(t, cluster.Options{})
			newQueue(t, p, "stray")
			w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
			active, standby := inSync(t, p)
			acked(t, w)
			leads, follows := eventsOf(t, active), eventsOf(t, standby)
			require.NoError(t, p.StopEtcd())
			require.NoError(t, standby.Kill())
			leads.role(failover.RoleBlocked, gone()...)
			err := sideLoad{active, "stray"}.publish(limited(t))
			require.Equal(t, codes.Unavailable, status.Code(err), "%v", err)
			if back == "etcd" {
				without := logSize(t, active)
				require.NoError(t, p.StartEtcd(limited(t)))
				require.Greater(t, leads.dropped(gone()...).End, without)
				acked(t, w)
				require.NoError(t, standby.Start())
			} else {
				require.NoError(t, standby.Start())
				follows.role(failover.RoleRecovering, failover.CodeStart)
				leads.never(logSize(t, active), failover.RoleActive, failover.RoleActiveAlone)
				require.NoError(t, p.StartEtcd(limited(t)))
				acked(t, w)
			}
			verify(t, p, w)
		})
	}
}

// After both nodes are killed or stopped, and then restarted, the pair is in sync, and nothing is lost.
func TestBothRestarted(t *testing.T) {
	t.Parallel() // mostly idle
	p := start(t, cluster.Options{})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	acked(t, w)
	for _, n := range p.Nodes() {
		require.NoError(t, n.Kill())
	}
	for _, n := range p.Nodes() {
		require.NoError(t, n.Start())
	}
	acked(t, w)
	inSync(t, p)
	for _, n := range p.Nodes() {
		require.NoError(t, n.Stop())
	}
	for _, n := range p.Nodes() {
		require.NoError(t, n.Start())
	}
	acked(t, w)
	verify(t, p, w)
}

// The active continues alone, and is killed. The other node, on which acknowledged messages are missing, waits for
// it, and reports the reason.
func TestOnlyInSyncNodeActivates(t *testing.T) {
	p := start(t, cluster.Options{})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	active, standby := inSync(t, p)
	leads, waits := eventsOf(t, active), eventsOf(t, standby)
	require.NoError(t, standby.Kill())
	leads.dropped(gone()...)
	acked(t, w)
	require.NoError(t, active.Kill())
	require.NoError(t, standby.Start())
	waits.role(failover.RoleCatchingUp, failover.CodeRecord)
	waits.condition(conditions.ActiveUnreachable)
	waits.never(logSize(t, standby), activeRoles()...)
	s, err := standby.Status(limited(t))
	require.NoError(t, err)
	require.NotEmpty(t, s.GetReason(), "a waiting node must report the reason")
	t.Logf("the waiting node reports: %v: %s", s.GetRole(), s.GetReason())
	require.NoError(t, active.Start())
	acked(t, w)
	inSync(t, p)
	waits.never(logSize(t, standby), activeRoles()...)
	verify(t, p, w)
}

// No publish fails during planned switchovers under load, in both directions.
func TestSwitchover(t *testing.T) {
	p := start(t, cluster.Options{Settings: steady()})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	for range 4 {
		active, standby := inSync(t, p)
		was, is := eventsOf(t, active), eventsOf(t, standby)
		acked(t, w)
		r, err := pb.NewAdminServiceClient(active.Conn()).Switchover(limited(t), &pb.SwitchoverRequest{})
		require.NoError(t, err)
		require.Equal(t, standby.Address, r.GetActiveAddress())
		given := was.role(failover.RoleFenced, failover.CodeSwitchover)
		taken := is.role(failover.RoleActivating, failover.CodeSwitchover)
		require.Equal(t, given.Number("term"), taken.Number("term"))
		is.role(failover.RoleActive)
		t.Logf("pause: %v", r.GetPause().AsDuration())
	}
	verify(t, p, w)
	for _, publish := range w.History().Publishes {
		require.Equal(t, historycheck.Acked, publish.Outcome, publish.Error)
	}
}

// A standby receives a snapshot if its position is no longer in the active's log. During the transfer, the standby
// is killed repeatedly, and the active once.
func TestSnapshotTransfer(t *testing.T) {
	t.Parallel() // mostly idle
	p := start(t, cluster.Options{Settings: map[string]string{
		"wal.keep-bytes": "1MiB", "wal.segment-bytes": "1MiB", "checkpoint.bytes": "1MiB", "memory.budget": "16MiB",
	}})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t), PerSecond: 1000, LargeBytes: 4 << 20})
	active, standby := inSync(t, p)
	s, err := standby.Status(limited(t))
	require.NoError(t, err)
	has := s.GetStore().GetLogEnd().GetLsn()
	require.NoError(t, standby.Kill())
	admin := pb.NewAdminServiceClient(active.Conn())
	require.Eventually(t, func() bool {
		_, err := admin.Checkpoint(limited(t), &pb.CheckpointRequest{})
		require.NoError(t, err)
		s, err := active.Status(limited(t))
		require.NoError(t, err)
		return s.GetStore().GetLogFirstLsn() > has+1 && s.GetStore().GetMessageBytes() > 24<<20
	}, bound, 50*time.Millisecond, "the log is not trimmed")
	t.Logf("%v: the active's log no longer contains the position", w.History().Now().Round(time.Millisecond))
	for i := range 5 {
		require.NoError(t, standby.Start())
		<-time.After(time.Duration(20*(i+1)) * time.Millisecond) // not a wait for an event: kills at different moments
		require.NoError(t, standby.Kill())
	}
	require.NoError(t, standby.Start())
	<-time.After(50 * time.Millisecond)
	require.NoError(t, active.Kill())
	require.NoError(t, active.Start())
	inSync(t, p)
	log, err := os.ReadFile(standby.LogFile())
	require.NoError(t, err)
	t.Logf("%v: in sync again", w.History().Now().Round(time.Millisecond))
	for line := range strings.Lines(string(log)) {
		if strings.Contains(line, "snapshot") {
			t.Log(strings.TrimSpace(line))
		}
	}
	require.Contains(t, string(log), "snapshot installed", "no snapshot was sent")
	verify(t, p, w)
}
