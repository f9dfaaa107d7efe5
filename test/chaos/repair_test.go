// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

const (
	// repairFill is the size of the backlog in which bits are flipped.
	repairFill = 8 << 20
	// repairPageSize is the page size of page.db in maintenanceSettings.
	repairPageSize = 2 << 10
)

// flipAt flips one bit of a file of a running node.
func flipAt(t *testing.T, name string, at int64) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	var b [1]byte
	_, err = f.ReadAt(b[:], at)
	require.NoError(t, err)
	_, err = f.WriteAt([]byte{b[0] ^ 1}, at)
	require.NoError(t, err)
}

// flipMessages flips a bit of each given message of the backlog, at every location in page.db.
func flipMessages(t *testing.T, n *cluster.Node, messages ...uint64) {
	t.Helper()
	name := filepath.Join(n.DataDir(), "page.db")
	raw, err := os.ReadFile(name)
	require.NoError(t, err)
	for _, m := range messages {
		want := historycheck.Body(historycheck.ID{Producer: backlogProducer, N: m}, 20)[:16]
		found := 0
		for from := 0; ; found++ {
			at := bytes.Index(raw[from:], want)
			if at < 0 {
				break
			}
			flipAt(t, name, int64(from+at))
			from += at + len(want)
		}
		require.Positive(t, found, "message %d is not in %s", m, name)
	}
}

// flipIndex flips a bit of each tree node in page.db, including nodes of former checkpoints.
func flipIndex(t *testing.T, n *cluster.Node) {
	t.Helper()
	name := filepath.Join(n.DataDir(), "page.db")
	raw, err := os.ReadFile(name)
	require.NoError(t, err)
	found := 0
	for at := page.OffsetOf(1, repairPageSize); at+page.ExtentHeaderBytes < int64(len(raw)); at += repairPageSize {
		h, err := page.PeekExtent(raw[at:])
		if err == nil && h.Kind == page.KindNode && h.Extent.First == page.NoAt(at, repairPageSize) {
			flipAt(t, name, at+60)
			found++
		}
	}
	require.Positive(t, found)
}

// checkpointBoth writes everything published so far to the page files of both nodes.
func checkpointBoth(t *testing.T, p *cluster.Pair) {
	t.Helper()
	active, _ := inSync(t, p)
	end := statusOf(t, active).GetStore().GetLogEnd().GetLsn()
	for _, n := range p.Nodes() {
		require.Eventually(t, func() bool { return statusOf(t, n).GetStore().GetAppliedLsn() >= end }, bound,
			5*time.Millisecond)
		_, err := pb.NewAdminServiceClient(n.Conn()).Checkpoint(limited(t), &pb.CheckpointRequest{})
		require.NoError(t, err)
	}
}

// scrub reads and verifies all data on a node's disk.
func scrub(t *testing.T, n *cluster.Node) (*pb.ScrubResponse, error) {
	t.Helper()
	return pb.NewAdminServiceClient(n.Conn()).Scrub(limited(t), &pb.ScrubRequest{FullSpeed: true})
}

// compare runs Verify on the active, requires that the nodes have no differences, and returns the response.
func compare(t *testing.T, p *cluster.Pair, deep bool) *pb.VerifyResponse {
	t.Helper()
	active, _ := inSync(t, p)
	r, err := pb.NewAdminServiceClient(active.Conn()).Verify(limited(t), &pb.VerifyRequest{Deep: deep, FullSpeed: true})
	require.NoError(t, err)
	require.Empty(t, r.GetDifferences())
	require.Len(t, r.GetNodes(), 2)
	return r
}

func statusOf(t *testing.T, n *cluster.Node) *pb.GetStatusResponse {
	t.Helper()
	st, err := n.Status(limited(t))
	require.NoError(t, err)
	return st
}

// spread returns n sequences distributed over the backlog.
func spread(s *backlog, n int) []uint64 {
	var out []uint64
	for i := range n {
		out = append(out, s.messages*uint64(2*i+1)/uint64(2*n)+1)
	}
	return out
}

// Bits flip in page.db of one node, and then of the other, under load. All messages are served and repaired, and both
// nodes are equal at the end, page by page.
func TestRepairUnderLoad(t *testing.T) {
	s := seed(t)
	p := start(t, cluster.Options{Settings: maintenanceSettings()})
	backlog := fillBacklog(t, p, repairFill, s)
	w := work(t, p, cluster.WorkloadOptions{Prefix: "repair-", Seed: s, PerSecond: 300})
	checkpointBoth(t, p)
	active, standby := inSync(t, p)

	// No consumer reads on the standby, so the scrub detects the corruption.
	flipMessages(t, standby, spread(backlog, 20)...)
	r, err := scrub(t, standby)
	require.NoError(t, err)
	require.GreaterOrEqual(t, r.GetDamage().GetRepairedPages(), uint64(20))
	require.Eventually(t, func() bool { return statusOf(t, standby).GetDamage().GetDamagedMessages() == 0 }, bound,
		20*time.Millisecond)

	// On the active, a reader detects the corruption.
	flipMessages(t, active, spread(backlog, 17)...)
	backlog.check(t)
	st := statusOf(t, active)
	require.GreaterOrEqual(t, st.GetDamage().GetRepairedPages(), uint64(17))
	require.Zero(t, st.GetDamage().GetDamagedMessages())
	require.Empty(t, st.GetAlarms())

	// All data is valid, and both nodes are equal.
	v := compare(t, p, true)
	require.Empty(t, v.GetContentError())
	for _, n := range v.GetNodes() {
		require.Empty(t, n.GetDamaged())
	}
	acked(t, w)
	verify(t, p, w)
	backlog.check(t)
	checkOffline(t, p)
}

// If a message is corrupt on both nodes, a read returns DATA_LOSS. All other messages are served to readers and
// consumers, and both nodes report the message until it is discarded.
func TestBothCopiesCorrupt(t *testing.T) {
	s := seed(t)
	p := start(t, cluster.Options{Settings: maintenanceSettings()})
	backlog := fillBacklog(t, p, repairFill, s)
	// A large message is in separate pages, so that no other message is lost.
	large, err := publishLarge(t, backlog, 100<<10)
	require.NoError(t, err)
	checkpointBoth(t, p)
	active, standby := inSync(t, p)
	other := backlog.messages / 2
	flipMessages(t, active, large, other)
	flipMessages(t, standby, large)

	var lost []uint64
	next := uint64(1)
	for next <= backlog.messages {
		var failed error
		for m, err := range backlog.c.Browse(limited(t), backlogQueue, client.BrowseOptions{From: next}) {
			if failed = err; err != nil {
				break
			}
			require.Equal(t, next, m.Sequence)
			next++
		}
		if failed != nil {
			require.ErrorIs(t, failed, client.ErrDataLoss)
			lost = append(lost, next)
			next++
		}
	}
	require.Equal(t, []uint64{large}, lost, "only messages corrupt on both nodes are lost")

	// A consumer receives all other messages.
	consumer, err := backlog.c.Consume(t.Context(), backlogQueue,
		client.ConsumerOptions{Subscription: "sub-0", Prefetch: 100_000})
	require.NoError(t, err)
	defer func() { _ = consumer.Close() }()
	var got []uint64
	for uint64(len(got)) < backlog.messages-1 {
		m, err := consumer.Receive(limited(t))
		require.NoError(t, err)
		got = append(got, m.Sequence)
	}
	require.False(t, slices.Contains(got, large))

	// Both nodes report the message in a condition.
	_, err = scrub(t, standby)
	require.NoError(t, err)
	v := compare(t, p, false)
	for _, n := range v.GetNodes() {
		require.Len(t, n.GetDamaged(), 1, n.GetName())
		require.Equal(t, large, n.GetDamaged()[0].GetSequence())
		require.True(t, n.GetDamaged()[0].GetLost())
	}
	st := statusOf(t, active)
	require.True(t, slices.ContainsFunc(st.GetAlarms(),
		func(a *pb.Alarm) bool { return a.GetKind() == "corrupt-messages" }), "%v", st.GetAlarms())

	out, err := lockstep(t, p, "verify")
	require.Error(t, err, out)
	require.Contains(t, out, backlogQueue)
	out, err = lockstep(t, p, "status")
	require.NoError(t, err, out)
	require.Contains(t, out, "corrupt-messages")

	// Discarding removes the message and its condition.
	out, err = lockstep(t, p, "queue", "drop-corrupt", backlogQueue)
	require.NoError(t, err, out)
	require.Contains(t, out, fmt.Sprintf("%s: [%d]", backlogQueue, large))
	require.Eventually(t, func() bool {
		return len(statusOf(t, active).GetAlarms())+len(statusOf(t, standby).GetAlarms()) == 0
	}, bound, 20*time.Millisecond)
	n := uint64(0)
	for _, err := range backlog.c.Browse(limited(t), backlogQueue, client.BrowseOptions{}) {
		require.NoError(t, err)
		n++
	}
	require.Equal(t, backlog.messages-1, n)
	require.Empty(t, compare(t, p, true).GetContentError())
	out, err = lockstep(t, p, "verify", "--deep", "--full-speed")
	require.NoError(t, err, out)
	t.Log(out)
}

// lockstep runs the command line against the pair.
func lockstep(t *testing.T, p *cluster.Pair, args ...string) (string, error) {
	t.Helper()
	args = append(args, "--addr", p.A.Address+","+p.B.Address)
	out, err := exec.CommandContext(limited(t), binary, args...).CombinedOutput()
	return string(out), err
}

// publishLarge adds a message to the backlog, and returns its sequence.
func publishLarge(t *testing.T, s *backlog, size int) (uint64, error) {
	t.Helper()
	producer, err := s.c.NewProducer(limited(t), client.ProducerOptions{})
	require.NoError(t, err)
	defer func() { _ = producer.Close() }()
	s.messages++
	r, err := producer.Publish(limited(t), backlogQueue,
		client.Message{Body: historycheck.Body(historycheck.ID{Producer: backlogProducer, N: s.messages}, size)})
	return r.Sequence, err
}

// A standby with a corrupt index replaces its store with a snapshot of the active. An active with a corrupt index
// first hands over its role. No acknowledged message is lost.
func TestCorruptIndexUnderLoad(t *testing.T) {
	s := seed(t)
	p := start(t, cluster.Options{Settings: maintenanceSettings()})
	backlog := fillBacklog(t, p, repairFill, s)
	w := work(t, p, cluster.WorkloadOptions{Prefix: "index-", Seed: s, PerSecond: 300})
	checkpointBoth(t, p)
	for round, which := range []string{"standby", "active"} {
		active, standby := inSync(t, p)
		victim := standby
		if which == "active" {
			victim = active
		}
		since := logSize(t, victim)
		// Retry until the corruption is detected, because tree nodes written in the meantime are valid.
		require.Eventually(t, func() bool {
			flipIndex(t, victim)
			_, err := scrub(t, victim)
			return err != nil || hasLogged(t, victim, "the store must be replaced", since)
		}, bound, 20*time.Millisecond, "round %d", round)
		require.Eventually(t, func() bool { return hasLogged(t, victim, "snapshot installed", since) }, bound,
			20*time.Millisecond, "round %d", round)
		acked(t, w)
		now, _ := inSync(t, p)
		if which == "active" {
			require.NotEqual(t, victim.Name, now.Name, "the active has handed over its role")
		}
		require.Eventually(t, func() bool { return len(statusOf(t, victim).GetAlarms()) == 0 }, bound,
			20*time.Millisecond)
		require.Empty(t, compare(t, p, true).GetContentError())
	}
	verify(t, p, w)
	backlog.check(t)
	checkOffline(t, p)
}

// If files that a start requires are corrupt, the node quarantines them, and copies all data from the other node.
// Nothing is lost.
func TestCorruptAtStart(t *testing.T) {
	s := seed(t)
	p := start(t, cluster.Options{Settings: maintenanceSettings()})
	backlog := fillBacklog(t, p, repairFill, s)
	w := work(t, p, cluster.WorkloadOptions{Prefix: "start-", Seed: s, PerSecond: 300})
	checkpointBoth(t, p)
	for _, corruption := range []func(n *cluster.Node){
		func(n *cluster.Node) { flipIndex(t, n) },
		func(n *cluster.Node) {
			for _, at := range []int64{16<<10 + 60, 32<<10 + 60} { // both meta slots
				flipAt(t, filepath.Join(n.DataDir(), "page.db"), at)
			}
		},
		func(n *cluster.Node) {
			segments, err := filepath.Glob(filepath.Join(n.DataDir(), "log", "*.seg"))
			require.NoError(t, err)
			require.NotEmpty(t, segments)
			for _, name := range segments {
				flipAt(t, name, 4096+200)
			}
		},
	} {
		active, _ := inSync(t, p)
		since := logSize(t, active)
		require.NoError(t, active.Kill())
		acked(t, w)
		corruption(active)
		require.NoError(t, active.Start())
		inSync(t, p)
		require.True(t, hasLogged(t, active, "quarantined", since) || hasLogged(t, active, "must be replaced", since))
		require.Empty(t, compare(t, p, true).GetContentError())
	}
	verify(t, p, w)
	backlog.check(t)
	checkOffline(t, p)
}

// If a part of the active's log that only a returning standby requires is corrupt, the standby receives a snapshot.
func TestCorruptActiveLog(t *testing.T) {
	s := seed(t)
	settings := maintenanceSettings()
	settings["wal.keep-bytes"], settings["wal.segment-bytes"] = "256MiB", "1MiB"
	p := start(t, cluster.Options{Settings: settings})
	active, standby := inSync(t, p)
	require.NoError(t, standby.Kill())
	backlog := fillBacklog(t, p, repairFill, s)
	require.NoError(t, active.Stop()) // cached data must not hide the corruption
	require.NoError(t, active.Start())
	require.Eventually(t, func() bool {
		st, err := active.Status(limited(t))
		return err == nil && st.GetRole() == pb.Role_ROLE_ACTIVE_ALONE
	}, bound, 10*time.Millisecond)
	segments, err := filepath.Glob(filepath.Join(active.DataDir(), "log", "*.seg"))
	require.NoError(t, err)
	require.Greater(t, len(segments), 3)
	slices.Sort(segments)
	for _, name := range segments[1 : len(segments)-1] {
		flipAt(t, name, 4096+200)
	}
	since := logSize(t, standby)
	require.NoError(t, standby.Start())
	inSync(t, p)
	require.True(t, hasLogged(t, standby, "snapshot installed", since))
	require.Eventually(t, func() bool {
		st := statusOf(t, active)
		return st.GetDamage().GetRepairedLog() > 0 && len(st.GetAlarms()) == 0
	}, bound, 20*time.Millisecond)
	require.Empty(t, compare(t, p, true).GetContentError())
	backlog.check(t)
	checkOffline(t, p)
}
