// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/vfs/faultdisk"
)

// matrixStall is the disk.stall-timeout of the matrix. It is shorter than faultTime, so that a stalled disk changes
// the role before the disk recovers.
const matrixStall = "500ms"

// diskFaults returns the disk faults of TestFaultMatrix.
func diskFaults() []fault {
	syncFails := faultdisk.State{Rules: []faultdisk.Rule{{Ops: []string{"sync"}, Times: 1, Error: "EIO"}}}
	slow := faultdisk.State{Rules: []faultdisk.Rule{{Delay: 10 * time.Millisecond}}}
	active := func(m *matrix) *cluster.Node { return m.active }
	standby := func(m *matrix) *cluster.Node { return m.standby }
	lasting := func(principal func(*matrix) *cluster.Node, s faultdisk.State) func(*matrix, *testing.T) bool {
		return func(m *matrix, t *testing.T) bool {
			m.breakDisk(t, principal(m), s)
			<-time.After(faultTime) // duration of the fault
			return m.repairDisk(t, principal(m))
		}
	}
	return []fault{
		{"an fsync of the active fails", func(m *matrix, t *testing.T) bool {
			return m.failSync(t, m.active,
				syncFails)
		}},
		{"an fsync of the standby fails", func(m *matrix, t *testing.T) bool {
			return m.failSync(t, m.standby,
				syncFails)
		}},
		{"disk of the active stalls", lasting(active, stalledDisk)},
		{"disk of the standby stalls", lasting(standby, stalledDisk)},
		{"disk of the active is slow", lasting(active, slow)},
		{"disk of the standby is slow", lasting(standby, slow)},
		{"bits of page.db flip", (*matrix).flipBits},
		{"power cut", (*matrix).powerCut},
	}
}

// breakDisk sets the disk faults of a node. A node that is down because of the phase is started with these faults.
func (m *matrix) breakDisk(t *testing.T, n *cluster.Node, s faultdisk.State) {
	t.Helper()
	if n.Ended() { // exited due to a fault of the phase
		require.NoError(t, n.Kill())
	}
	if n.Running() {
		require.NoError(t, n.SetDisk(limited(t), s))
		return
	}
	n.StartWithDisk(s)
	require.NoError(t, n.Start())
	n.StartWithDisk(healthyDisk) // for later starts
}

// repairDisk clears the disk faults of a node, and reports whether they were injected.
func (m *matrix) repairDisk(t *testing.T, n *cluster.Node) bool {
	t.Helper()
	start := time.Now()
	injected := m.diskFaulty(t, n)
	for !injected && time.Since(start) < bound { // on a busy machine, the node may not have done I/O yet
		<-time.After(10 * time.Millisecond)
		injected = m.diskFaulty(t, n)
	}
	require.NoError(t, n.SetDisk(limited(t), healthyDisk))
	return injected
}

// diskFaulty reports whether each rule of a disk's state has been applied.
func (m *matrix) diskFaulty(t *testing.T, n *cluster.Node) bool {
	t.Helper()
	hits, err := n.DiskHits(limited(t))
	require.NoError(t, err)
	return len(hits) > 0 && !slices.Contains(hits, 0)
}

// failSync makes an fsync fail, so that the node exits, and reports whether the node logged the error. It works in
// every role, because every role syncs.
func (m *matrix) failSync(t *testing.T, n *cluster.Node, s faultdisk.State) bool {
	since := logSize(t, n)
	m.breakDisk(t, n, s)
	waitExit(t, n)
	return hasLogged(t, n, "input/output error", since)
}

// flipBits flips bits in page file writes of the standby or, if the phase killed the active, of the restarted
// active. Data that only one node has cannot be repaired. The scrub detects and repairs the corruption, because the
// next fault may corrupt the other copy.
func (m *matrix) flipBits(t *testing.T) bool {
	victim := m.standby
	if !m.active.Running() {
		victim = m.active
	}
	m.breakDisk(t, victim, faultdisk.State{
		Seed: m.rng.Uint64(), Rules: []faultdisk.Rule{{
			Ops: []string{"write"}, Files: "page.db*", Flip: true, Every: 5,
			Times: 6,
		}},
	})
	// The fault requires a page file write: a checkpoint, automatic or requested.
	var injected bool
	require.Eventually(t, func() bool {
		if victim.Ended() {
			injected = true // the node exited because of corrupt data
			return true
		}
		_, _ = pb.NewAdminServiceClient(victim.Conn()).Checkpoint(limited(t), &pb.CheckpointRequest{})
		hits, err := victim.DiskHits(limited(t))
		injected = err == nil && len(hits) > 0 && hits[0] > 0
		return injected
	}, bound, 50*time.Millisecond, "the node does not write to its page file")
	<-time.After(faultTime) // duration of the fault
	if err := victim.SetDisk(limited(t), healthyDisk); !errors.Is(err, cluster.ErrNotRunning) {
		require.NoError(t, err)
	}
	m.supervise(t, victim)
	m.repair(t)
	require.Eventually(t, func() bool {
		inSync(t, m.p) // a standby with a corrupt index first receives a snapshot
		_, err := scrub(t, victim)
		return err == nil && statusOf(t, victim).GetDamage().GetDamagedMessages() == 0 &&
			len(statusOf(t, victim).GetAlarms()) == 0
	}, bound, 50*time.Millisecond, "corrupt data was not repaired")
	return injected
}

// supervise restarts nodes that exit, until the pair is in sync. Unusable data, such as the index of a newly
// installed snapshot, stops a node, and is quarantined at the next start.
func (m *matrix) supervise(t *testing.T, n *cluster.Node) {
	t.Helper()
	require.Eventually(t, func() bool {
		if n.Ended() {
			require.NoError(t, n.Kill())
		}
		for _, n := range m.p.Nodes() {
			if !n.Running() {
				require.NoError(t, n.Start())
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _, err := m.p.WaitInSync(ctx)
		return err == nil
	}, bound, time.Millisecond)
}

// powerCut cuts the power of both nodes together. Unsynced data is lost, except for pages that the disk wrote before
// an fsync.
func (m *matrix) powerCut(t *testing.T) bool {
	held := faultdisk.State{
		Hold: true, Leak: []float64{0, 0.5, 0.9}[m.rng.IntN(3)], Seed: m.rng.Uint64(),
		Rules: []faultdisk.Rule{{Ops: []string{"write"}}}, // only counts
	}
	for _, n := range m.p.Nodes() {
		m.breakDisk(t, n, held)
	}
	require.Eventually(t, func() bool { // until some unsynced data exists
		return m.diskFaulty(t, m.active) && m.diskFaulty(t, m.standby)
	}, bound, time.Millisecond)
	<-time.After(time.Duration(m.rng.Int64N(int64(500 * time.Millisecond)))) // an arbitrary moment
	for _, n := range m.p.Nodes() {
		require.NoError(t, n.LosePower())
	}
	return true
}
