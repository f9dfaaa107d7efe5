// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/vfs/faultdisk"
)

// States of a disk.
var (
	stalledDisk = faultdisk.State{Rules: []faultdisk.Rule{{Stall: true}}}
	healthyDisk = faultdisk.State{}
)

// startBreakable starts a pair with injectable disk faults.
func startBreakable(t *testing.T, o cluster.Options) *cluster.Pair {
	t.Helper()
	if !cluster.CanBreakDisks(binary) {
		missingFeature(t, needsFaultdisk, "LOCKSTEP_BINARY was not built with -tags %s", faultdisk.Tag)
	}
	o.Disk = true
	return start(t, o)
}

func setDisk(t *testing.T, n *cluster.Node, s faultdisk.State) {
	t.Helper()
	require.NoError(t, n.SetDisk(limited(t), s))
}

// injected waits until each rule of the disk's state has been applied.
func injected(t *testing.T, n *cluster.Node) {
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
	}, bound, 10*time.Millisecond, "the fault was not injected")
}

// waitExit waits until a node exits without a signal from the test, and reaps it.
func waitExit(t *testing.T, n *cluster.Node) {
	t.Helper()
	select {
	case <-n.Exited():
	case <-time.After(bound):
		require.Fail(t, "the node keeps running", "%s, see %s", n.Name, n.LogFile())
	}
	require.NoError(t, n.Kill())
}

// An fsync fails with EIO, first on the standby and then on the active. The node exits (INV-7), and the other node
// serves. After a restart, the node recovers and is in sync again.
func TestFailedSync(t *testing.T) {
	p := startBreakable(t, cluster.Options{})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	active, standby := inSync(t, p)
	for _, victim := range []*cluster.Node{standby, active} {
		acked(t, w)
		since, marked := logSize(t, victim), w.History().Now()
		setDisk(t, victim, faultdisk.State{Rules: []faultdisk.Rule{{Ops: []string{"sync"}, Times: 1, Error: "EIO"}}})
		waitExit(t, victim)
		require.True(t, hasLogged(t, victim, "input/output error", since), "the node must report the reason")
		ackedSince(t, w, marked, victim)
		require.NoError(t, victim.Start())
		inSync(t, p)
	}
	verify(t, p, w)
}

// The disk of the active stalls. The active stops its heartbeats, the standby takes over, and the old active
// acknowledges no request during or after the stall. When the disk recovers, the node is in sync again.
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
	is.takeovers(silent()...)

	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	answers := make(chan error, 16)
	for range cap(answers) {
		go func() { answers <- sideLoad{old, "stray"}.publish(ctx) }()
	}
	setDisk(t, old, healthyDisk)
	for range cap(answers) {
		require.Error(t, <-answers, "a replaced node acknowledged a write")
	}
	verify(t, p, w)
	require.Zero(t, messages())
}

// The disk of the standby stalls. The active removes the standby from the in-sync set and continues. When the disk
// recovers, the standby is in sync again.
func TestStalledStandby(t *testing.T) {
	p := startBreakable(t, cluster.Options{Settings: map[string]string{"disk.stall-timeout": "1s"}})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	active, standby := inSync(t, p)
	acked(t, w)
	leads := eventsOf(t, active)
	setDisk(t, standby, stalledDisk)
	leads.dropped(silent()...)
	acked(t, w)
	setDisk(t, standby, healthyDisk)
	leads.role(failover.RoleActive, failover.CodeStandbyInSync)
	now, _ := inSync(t, p)
	require.Equal(t, active.Name, now.Name, "the role must not change")
	verify(t, p, w)
}

// Disk operations that are slow, but faster than the timeout, change no roles and remove no node from the in-sync
// set.
func TestSlowDisk(t *testing.T) {
	// The timeouts are so long that a slow node is not treated as failed.
	p := startBreakable(t, cluster.Options{Settings: map[string]string{
		"disk.stall-timeout": "20s", "failover.timeout": "10s", "failover.drop-timeout": "8s",
	}})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	active, standby := inSync(t, p)
	config := statusOf(t, active).GetPair().GetConfig()
	for _, slow := range []*cluster.Node{active, standby} {
		setDisk(t, slow, faultdisk.State{Rules: []faultdisk.Rule{{Delay: 50 * time.Millisecond}}})
		until := time.Now().Add(1500 * time.Millisecond) // duration of the fault
		for time.Now().Before(until) {
			acked(t, w)
		}
		injected(t, slow)
		setDisk(t, slow, healthyDisk)
	}
	now, _ := inSync(t, p)
	require.Equal(t, active.Name, now.Name)
	require.Equal(t, config, statusOf(t, active).GetPair().GetConfig(), "the record was changed")
	verify(t, p, w)
}

// Both nodes repeatedly lose power together under load. Unsynced data is lost, except for pages that the disk wrote
// before an fsync. No acknowledged message is lost.
func TestPowerCut(t *testing.T) {
	s := seed(t)
	p := startBreakable(t, cluster.Options{Settings: map[string]string{
		// Small, so that faults occur during checkpoints and writes to reused log segments.
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
		<-time.After(time.Duration(300+200*round) * time.Millisecond) // an arbitrary moment
		require.NoError(t, active.LosePower())
		require.NoError(t, standby.LosePower())
		for _, n := range p.Nodes() {
			require.NoError(t, n.Start())
		}
		acked(t, w)
	}
	verify(t, p, w)
}

// Reads of the page file on the active fail, or return a flipped bit. The active fetches the data from the standby,
// and no client receives an error.
func TestFailedRead(t *testing.T) {
	s := seed(t)
	for name, rule := range map[string]faultdisk.Rule{
		"error": {Error: "EIO"},
		"bit":   {Flip: true},
	} {
		t.Run(name, func(t *testing.T) {
			p := startBreakable(t, cluster.Options{Settings: maintenanceSettings()})
			backlog := fillBacklog(t, p, repairFill, s)
			checkpointBoth(t, p)
			active, _ := inSync(t, p)
			rule.Ops, rule.Files, rule.Every, rule.Times = []string{"read"}, "page.db", 9, 20
			setDisk(t, active, faultdisk.State{Seed: s, Rules: []faultdisk.Rule{rule}})
			backlog.check(t)
			injected(t, active)
			setDisk(t, active, healthyDisk)
			require.Eventually(t, func() bool {
				st := statusOf(t, active)
				return st.GetDamage().GetDamagedMessages() == 0 && len(st.GetAlarms()) == 0
			}, bound, 20*time.Millisecond)
			backlog.check(t)
			inSync(t, p)
			require.Empty(t, compare(t, p, true).GetContentError())
			checkOffline(t, p)
		})
	}
}

// Bits flip in log writes of the standby, which does not read its log while it is running. After a restart, the
// standby detects the corruption, and fetches the affected part, or everything, from the active.
func TestFlippedLog(t *testing.T) {
	s := seed(t)
	p := startBreakable(t, cluster.Options{Settings: steady()})
	w := work(t, p, cluster.WorkloadOptions{Seed: s})
	active, standby := inSync(t, p)
	// A rule matches a log segment by the name under which it was opened: its number with a variable suffix.
	setDisk(t, standby, faultdisk.State{Seed: s, Rules: []faultdisk.Rule{
		{Ops: []string{"write"}, Files: "[0-9]*", Flip: true, Every: 20, Times: 3},
	}})
	require.Eventually(t, func() bool {
		hits, err := standby.DiskHits(limited(t))
		require.NoError(t, err)
		return hits[0] == 3
	}, bound, 10*time.Millisecond)
	setDisk(t, standby, healthyDisk)
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

// rounds returns the number of rounds, which is higher in a long run.
func rounds(t *testing.T, usually int) int {
	t.Helper()
	if n, limit := length(t); limit > defaultTime {
		return min(n, 20*usually)
	}
	return usually
}
