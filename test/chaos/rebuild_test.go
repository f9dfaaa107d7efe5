// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

func command(t *testing.T, args ...string) (output string, err error) {
	t.Helper()
	out, err := exec.CommandContext(limited(t), binary, args...).CombinedOutput()
	return string(out), err
}

// waitForOperator waits until both nodes wait for an operator, and checks that their status shows the required action.
func waitForOperator(t *testing.T, p *cluster.Pair, reason string) {
	t.Helper()
	states := func(s *pb.GetStatusResponse) bool {
		return s.GetRole() == pb.Role_ROLE_RECOVERING && strings.Contains(s.GetReason(), reason) &&
			strings.Contains(s.GetReason(), "lockstep pair adopt")
	}
	require.NoError(t, p.Wait(limited(t), "two nodes that wait for an operator",
		func(a, b *pb.GetStatusResponse) bool { return states(a) && states(b) }))
	for _, n := range p.Nodes() {
		out, _ := command(t, "--addr", n.Address, "status")
		require.Contains(t, out, "pair adopt")
	}
}

// After etcd was wiped, or restored from an old copy, while the pair was down, both nodes wait for an operator. When
// one node has adopted the pair, the other node joins, and no acknowledged message is lost.
func TestRebuildRecord(t *testing.T) {
	t.Parallel() // mostly idle
	for _, tt := range []struct {
		name     string
		restored bool // etcd is restored from an old copy; otherwise, etcd is wiped
		alone    bool // the active continued alone before the pair went down, so it has more records
	}{
		{"wiped", false, false},
		{"wiped-one-ahead", false, true},
		{"restored", true, false},
		{"restored-one-ahead", true, true},
	} {
		t.Run(tt.name, func(t *testing.T) { rebuildAfter(t, tt.restored, tt.alone) })
	}
}

func rebuildAfter(t *testing.T, restored, alone bool) {
	t.Helper()
	p := start(t, cluster.Options{})
	etcdDir := filepath.Join(filepath.Dir(p.A.Dir), "etcd")
	oldCopy := filepath.Join(filepath.Dir(p.A.Dir), "etcd-old")
	require.NoError(t, p.StopEtcd())
	require.NoError(t, os.CopyFS(oldCopy, os.DirFS(etcdDir)))
	require.NoError(t, p.StartEtcd(t.Context()))
	active, _ := inSync(t, p)

	w := work(t, p, cluster.WorkloadOptions{Prefix: "adopt-", Seed: 1})
	acked(t, w)
	// A change of roles puts the fences of both nodes above the record in the old copy.
	require.NoError(t, active.Kill())
	ackedSince(t, w, w.History().Now(), active)
	require.NoError(t, active.Start())
	active, standby := inSync(t, p)
	acked(t, w)
	if alone {
		require.NoError(t, standby.Kill())
		require.NoError(t, p.WaitRole(limited(t), active, pb.Role_ROLE_ACTIVE_ALONE))
		acked(t, w)
	} else {
		require.NoError(t, standby.Kill())
	}
	require.NoError(t, active.Kill())

	require.NoError(t, p.StopEtcd())
	require.NoError(t, os.RemoveAll(etcdDir))
	reason := "no cluster record"
	if restored {
		require.NoError(t, os.CopyFS(etcdDir, os.DirFS(oldCopy)))
		reason = "older than this node's fence"
	}
	require.NoError(t, p.StartEtcd(t.Context()))
	require.NoError(t, active.Start())
	require.NoError(t, standby.Start())
	waitForOperator(t, p, reason)

	rebuilder := ahead(t, p)
	if alone {
		require.Equal(t, active, rebuilder, "the active has acknowledged without a standby")
		out, err := command(t, "--addr", standby.Address, "pair", "adopt", "--yes")
		require.Error(t, err)
		require.Contains(t, out, "other node")
		waitForOperator(t, p, reason)
	}
	out, err := command(t, "--addr", rebuilder.Address, "pair", "adopt")
	require.Error(t, err, "without --yes")
	require.Contains(t, out, "more records")
	require.Contains(t, out, "--yes")
	waitForOperator(t, p, reason)
	out, err = command(t, "--addr", rebuilder.Address, "pair", "adopt", "--yes")
	require.NoError(t, err, out)
	require.Contains(t, out, "done: node "+rebuilder.Name)
	out, err = command(t, "--addr", rebuilder.Address, "pair", "adopt", "--yes")
	require.Error(t, err, "a second run has nothing to rebuild")
	require.Contains(t, out, "to adopt")

	inSync(t, p)
	acked(t, w)
	verify(t, p, w)
	require.NoError(t, p.WaitApplied(limited(t)))
	digests, err := p.Digests(limited(t))
	require.NoError(t, err)
	require.Equal(t, digests[0].Content, digests[1].Content)
}

// ahead returns the node with the longer log, which an operator would select.
func ahead(t *testing.T, p *cluster.Pair) *cluster.Node {
	t.Helper()
	var best *cluster.Node
	var end *pb.Position
	for _, n := range p.Nodes() {
		s, err := n.Status(limited(t))
		require.NoError(t, err)
		e := s.GetStore().GetLogEnd()
		if best == nil || e.GetTerm() > end.GetTerm() || e.GetTerm() == end.GetTerm() && e.GetLsn() > end.GetLsn() {
			best, end = n, e
		}
	}
	return best
}

// If etcd is wiped while the pair runs, no write fails, and the active can adopt the pair without an interruption.
func TestRebuildRecordWhileRunning(t *testing.T) {
	t.Parallel() // mostly idle
	p := start(t, cluster.Options{})
	active, standby := inSync(t, p)
	w := work(t, p, cluster.WorkloadOptions{Prefix: "running-", Seed: 1})
	acked(t, w)
	require.NoError(t, p.StopEtcd())
	require.NoError(t, os.RemoveAll(filepath.Join(filepath.Dir(p.A.Dir), "etcd")))
	require.NoError(t, p.StartEtcd(t.Context()))
	require.NoError(t, p.Wait(limited(t), "a missing record on both nodes", func(a, b *pb.GetStatusResponse) bool {
		return strings.Contains(a.GetReason(), "record is missing") && strings.Contains(b.GetReason(), "record is missing")
	}))
	acked(t, w)
	out, err := command(t, "--addr", standby.Address, "pair", "adopt", "--yes")
	require.Error(t, err)
	require.Contains(t, out, "not active")
	out, err = command(t, "--addr", active.Address, "pair", "adopt", "--yes")
	require.NoError(t, err, out)
	now, _ := inSync(t, p)
	require.Equal(t, active, now)
	acked(t, w)
	// The cluster record is valid: a failover works.
	since := w.History().Now()
	require.NoError(t, active.Kill())
	ackedSince(t, w, since, active)
	require.NoError(t, active.Start())
	verify(t, p, w)
}

// Adoption without the other node requires an explicit flag; afterwards, the remaining node serves.
func TestRebuildRecordWithoutPeer(t *testing.T) {
	t.Parallel() // mostly idle
	p := start(t, cluster.Options{})
	active, standby := inSync(t, p)
	w := work(t, p, cluster.WorkloadOptions{Prefix: "without-", Seed: 1})
	acked(t, w)
	// Kill the standby first. Otherwise, it would take over within milliseconds, and only the standby would have all
	// messages.
	require.NoError(t, standby.Kill())
	require.NoError(t, active.Kill())
	require.NoError(t, p.StopEtcd())
	require.NoError(t, os.RemoveAll(filepath.Join(filepath.Dir(p.A.Dir), "etcd")))
	require.NoError(t, p.StartEtcd(t.Context()))
	require.NoError(t, active.Start())
	require.NoError(t, p.WaitRole(limited(t), active, pb.Role_ROLE_RECOVERING))
	out, err := command(t, "--addr", active.Address, "pair", "adopt", "--yes")
	require.Error(t, err)
	require.Contains(t, out, "--without-other")
	require.NoError(t, p.WaitRole(limited(t), active, pb.Role_ROLE_RECOVERING))
	out, err = command(t, "--addr", active.Address, "pair", "adopt", "--yes", "--without-other")
	require.NoError(t, err, out)
	require.NoError(t, p.WaitRole(limited(t), active, pb.Role_ROLE_ACTIVE_ALONE))
	acked(t, w)
	require.NoError(t, standby.Start())
	verify(t, p, w)
}

// A pair is adopted without the other node, which has more committed messages. When that node returns, it discards
// its additional messages, because the cluster record contains the operator's decision (INV-13), and saves these
// messages to a file.
func TestRebuildRecordWithoutNewerPeer(t *testing.T) {
	p := start(t, cluster.Options{})
	more, rebuilder := inSync(t, p)
	c, err := p.NewClient(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, _, err = admin.New(c).CreateQueue(limited(t), "forced", admin.CreateQueueOptions{})
	require.NoError(t, err)
	publish(t, c, "kept", 20)
	require.NoError(t, rebuilder.Kill())
	require.NoError(t, p.WaitRole(limited(t), more, pb.Role_ROLE_ACTIVE_ALONE))
	publish(t, c, "lost", 30)
	require.NoError(t, more.Kill())
	require.NoError(t, p.StopEtcd())
	require.NoError(t, os.RemoveAll(filepath.Join(filepath.Dir(p.A.Dir), "etcd")))
	require.NoError(t, p.StartEtcd(t.Context()))
	require.NoError(t, rebuilder.Start())
	require.NoError(t, p.WaitRole(limited(t), rebuilder, pb.Role_ROLE_RECOVERING))
	s, err := rebuilder.Status(limited(t))
	require.NoError(t, err)
	end := s.GetStore().GetLogEnd().GetLsn()
	out, err := command(t, "--addr", rebuilder.Address, "pair", "adopt", "--yes", "--without-other")
	require.NoError(t, err, out)
	require.NoError(t, p.WaitRole(limited(t), rebuilder, pb.Role_ROLE_ACTIVE_ALONE))
	out, err = command(t, "--addr", rebuilder.Address, "status")
	require.NoError(t, err)
	require.Contains(t, out, "FORCED: node "+rebuilder.Name)
	require.Contains(t, out, "without a response")
	publish(t, c, "after", 10)

	require.NoError(t, more.Start())
	now, _ := inSync(t, p)
	require.Equal(t, rebuilder, now)
	require.Equal(t, append(bodies("kept", 20), bodies("after", 10)...), stored(t, c))
	requireKept(t, more, end, bodies("lost", 30))
}
