// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/store/vfs/faultdisk"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// Faults of a disk.
var (
	stalledDisk = faultdisk.State{Rules: []faultdisk.Rule{{Stall: true}}}
	soundDisk   = faultdisk.State{}
)

// startBreakable is start with disks that can be broken.
func startBreakable(t *testing.T, o cluster.Options) *cluster.Pair {
	t.Helper()
	if !cluster.CanBreakDisks(binary) {
		lacks(t, needsFaultdisk, "LOCKSTEP_BINARY was not built with -tags %s", faultdisk.Tag)
	}
	o.Disk = true
	return start(t, o)
}

// setDisk says what a node's disk does from now on.
func setDisk(t *testing.T, n *cluster.Node, s faultdisk.State) {
	t.Helper()
	require.NoError(t, n.SetDisk(limited(t), s))
}

// struck waits until each rule of the disk's state has struck.
func struck(t *testing.T, n *cluster.Node) {
	t.Helper()
	require.Eventually(t, func() bool {
		hits, err := n.DiskHits(limited(t))
		require.NoError(t, err)
		for _, h := range hits {
			if h == 0 {
				return false
			}
		}
		return true
	}, bound, 10*time.Millisecond, "the fault did not strike")
}

// diedBySelf waits until a node has ended by itself, and reaps it.
func diedBySelf(t *testing.T, n *cluster.Node) {
	t.Helper()
	select {
	case <-n.Exited():
	case <-time.After(bound):
		require.Fail(t, "the node goes on", "%s, see %s", n.Name, n.LogFile())
	}
	require.NoError(t, n.Kill())
}

// TestFailedSync: an fsync fails with EIO, once, first on the standby and then on the active. The node ends (INV-7);
// the other one serves; started again, it recovers and comes back in sync.
func TestFailedSync(t *testing.T) {
	p := startBreakable(t, cluster.Options{})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	active, standby := inSync(t, p)
	for _, victim := range []*cluster.Node{standby, active} {
		acked(t, w)
		since, marked := logged(t, victim), w.History().Now()
		setDisk(t, victim, faultdisk.State{Rules: []faultdisk.Rule{{Ops: []string{"sync"}, Times: 1, Error: "EIO"}}})
		diedBySelf(t, victim)
		require.True(t, said(t, victim, "input/output error", since), "it has to say why")
		ackedSince(t, w, marked, victim)
		require.NoError(t, victim.Start())
		inSync(t, p)
	}
	verify(t, p, w)
}

// TestStalledActive: the disk of the active hangs. It stops looking alive, the standby takes over, and nothing that the
// old one is asked meanwhile or afterwards is acknowledged by it. When the disk comes back, it comes back in sync.
func TestStalledActive(t *testing.T) {
	const stallTimeout = time.Second
	p := startBreakable(t, cluster.Options{Settings: map[string]string{"disk.stall-timeout": stallTimeout.String()}})
	messages := newQueue(t, p, "stray")
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	old, next := inSync(t, p)
	acked(t, w)
	is := eventsOf(t, next)
	since := w.History().Now()
	setDisk(t, old, stalledDisk)
	took := ackedSince(t, w, since, old)
	t.Logf("stall of the active's disk to the next acknowledged publish, with disk.stall-timeout %v: %v", stallTimeout,
		took)
	is.tookOver(silent()...)

	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	answers := make(chan error, 16)
	for range cap(answers) {
		go func() { answers <- stray{old, "stray"}.publish(ctx) }()
	}
	setDisk(t, old, soundDisk)
	for range cap(answers) {
		require.Error(t, <-answers, "a node that was replaced acknowledged a write")
	}
	verify(t, p, w)
	require.Zero(t, messages())
}

// TestStalledStandby: the disk of the standby hangs. It is taken out of the in-sync set, the active goes on, and when
// the disk comes back the standby is in sync again.
func TestStalledStandby(t *testing.T) {
	p := startBreakable(t, cluster.Options{Settings: map[string]string{"disk.stall-timeout": "1s"}})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	active, standby := inSync(t, p)
	acked(t, w)
	leads := eventsOf(t, active)
	setDisk(t, standby, stalledDisk)
	leads.dropped(silent()...)
	acked(t, w)
	setDisk(t, standby, soundDisk)
	leads.role(failover.RoleActive, failover.CodeStandbyInSync)
	now, _ := inSync(t, p)
	require.Equal(t, active.Name, now.Name, "the role was not to change")
	verify(t, p, w)
}

// TestSlowDisk: operations that take long, but not too long, change no roles and take no node out of the in-sync set.
func TestSlowDisk(t *testing.T) {
	// So long that a busy machine is not taken for a dead node.
	p := startBreakable(t, cluster.Options{Settings: map[string]string{
		"disk.stall-timeout": "20s", "failover.timeout": "10s", "failover.drop-timeout": "8s",
	}})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	active, standby := inSync(t, p)
	config := statusOf(t, active).GetPair().GetConfig()
	for _, slow := range []*cluster.Node{active, standby} {
		setDisk(t, slow, faultdisk.State{Rules: []faultdisk.Rule{{Delay: 50 * time.Millisecond}}})
		until := time.Now().Add(1500 * time.Millisecond) // the fault's own length
		for time.Now().Before(until) {
			acked(t, w)
		}
		struck(t, slow)
		setDisk(t, slow, soundDisk)
	}
	now, _ := inSync(t, p)
	require.Equal(t, active.Name, now.Name)
	require.Equal(t, config, statusOf(t, active).GetPair().GetConfig(), "the record was changed")
	verify(t, p, w)
}

// TestPowerCut: both nodes lose power at once under load, again and again: what they had not synced is lost, but for
// what a disk wrote by itself. Nothing that was acknowledged is.
func TestPowerCut(t *testing.T) {
	s := seed(t)
	p := startBreakable(t, cluster.Options{Settings: map[string]string{
		// Small, so that checkpoints and segments of the log that are used again are hit.
		"checkpoint.bytes": "1MiB", "checkpoint.interval": "300ms", "wal.segment-bytes": "1MiB",
		"wal.keep-bytes": "1MiB", "memory.budget": "16MiB",
	}})
	w := work(t, p, cluster.WorkloadOptions{Seed: s, PerSecond: 1000})
	leaks := []float64{0, 0.5, 0.9}
	for round := range rounds(t, 3) {
		held := faultdisk.State{Hold: true, Leak: leaks[round%len(leaks)], Seed: s + uint64(round)}
		active, standby := inSync(t, p)
		for _, n := range p.Nodes() {
			setDisk(t, n, held)
			n.StartWithDisk(held)
		}
		acked(t, w)
		<-time.After(time.Duration(300+200*round) * time.Millisecond) // any moment
		require.NoError(t, active.LosePower())
		require.NoError(t, standby.LosePower())
		for _, n := range p.Nodes() {
			require.NoError(t, n.Start())
		}
		acked(t, w)
	}
	verify(t, p, w)
}

// TestFailedRead: reads of the page file fail, or give a wrong bit, on the active. What is wanted comes from the other
// node, and no client notices.
func TestFailedRead(t *testing.T) {
	s := seed(t)
	for name, rule := range map[string]faultdisk.Rule{
		"error": {Error: "EIO"},
		"bit":   {Flip: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := startBreakable(t, cluster.Options{Settings: maintenanceSettings()})
			stock := fillStock(t, p, repairFill, s)
			checkpointBoth(t, p)
			active, _ := inSync(t, p)
			rule.Ops, rule.Files, rule.Every, rule.Times = []string{"read"}, "page.db", 9, 20
			setDisk(t, active, faultdisk.State{Seed: s, Rules: []faultdisk.Rule{rule}})
			stock.check(t)
			struck(t, active)
			setDisk(t, active, soundDisk)
			require.Eventually(t, func() bool {
				st := statusOf(t, active)
				return st.GetDamage().GetDamagedMessages() == 0 && len(st.GetAlarms()) == 0
			}, bound, 20*time.Millisecond)
			stock.check(t)
			inSync(t, p)
			require.Empty(t, compare(t, p, true).GetContentError())
			checkOffline(t, p)
		})
	}
}

// TestFlippedLog: bits of what the standby writes to its log flip. It does not read its log while it runs; restarted,
// it finds what is wrong, and gets that, or everything, from the active.
func TestFlippedLog(t *testing.T) {
	s := seed(t)
	p := startBreakable(t, cluster.Options{Settings: steady()})
	w := work(t, p, cluster.WorkloadOptions{Seed: s})
	active, standby := inSync(t, p)
	// A segment of the log is known by the name that it was opened under: its number, with an ending that changes.
	setDisk(t, standby, faultdisk.State{Seed: s, Rules: []faultdisk.Rule{
		{Ops: []string{"write"}, Files: "[0-9]*", Flip: true, Every: 20, Times: 3},
	}})
	require.Eventually(t, func() bool {
		hits, err := standby.DiskHits(limited(t))
		require.NoError(t, err)
		return hits[0] == 3
	}, bound, 10*time.Millisecond)
	setDisk(t, standby, soundDisk)
	acked(t, w)
	require.NoError(t, standby.Kill())
	acked(t, w)
	require.NoError(t, standby.Start())
	now, _ := inSync(t, p)
	require.Equal(t, active.Name, now.Name)
	require.Empty(t, compare(t, p, true).GetContentError())
	verify(t, p, w)
	checkOffline(t, p)
}

// rounds is how often something is done that is done more often in a long run.
func rounds(t *testing.T, usually int) int {
	t.Helper()
	if n, limit := length(t); limit > defaultTime {
		return min(n, 20*usually)
	}
	return usually
}
