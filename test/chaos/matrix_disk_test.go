//go:build unix

package chaos

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/vfs/faultdisk"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// matrixStall is the disk.stall-timeout of the matrix: a disk that hangs for faultTime has the role change before it is
// back.
const matrixStall = "500ms"

// diskFaults are those of TestMatrix that are about disks.
func diskFaults() []fault {
	syncFails := faultdisk.State{Rules: []faultdisk.Rule{{Ops: []string{"sync"}, Times: 1, Error: "EIO"}}}
	slow := faultdisk.State{Rules: []faultdisk.Rule{{Delay: 10 * time.Millisecond}}}
	active := func(m *matrix) *cluster.Node { return m.active }
	standby := func(m *matrix) *cluster.Node { return m.standby }
	lasting := func(who func(*matrix) *cluster.Node, s faultdisk.State) func(*matrix, *testing.T) {
		return func(m *matrix, t *testing.T) {
			m.setDisk(t, who(m), s)
			<-time.After(faultTime) // the fault's own length
			m.setDisk(t, who(m), soundDisk)
		}
	}
	return []fault{
		{"an fsync of the active fails", func(m *matrix, t *testing.T) { m.failSync(t, m.active, syncFails) }},
		{"an fsync of the standby fails", func(m *matrix, t *testing.T) { m.failSync(t, m.standby, syncFails) }},
		{"disk of the active hangs", lasting(active, stalledDisk)},
		{"disk of the standby hangs", lasting(standby, stalledDisk)},
		{"disk of the active is slow", lasting(active, slow)},
		{"disk of the standby is slow", lasting(standby, slow)},
		{"bits of page.db flip", (*matrix).flipBits},
		{"power cut", (*matrix).powerCut},
	}
}

// setDisk says what the disk of a node does, unless the node is gone.
func (m *matrix) setDisk(t *testing.T, n *cluster.Node, s faultdisk.State) (running bool) {
	t.Helper()
	err := n.SetDisk(limited(t), s)
	if errors.Is(err, cluster.ErrNotRunning) {
		return false
	}
	require.NoError(t, err)
	return true
}

// failSync lets an fsync fail: the node ends by itself. It syncs something sooner or later, whatever its role.
func (m *matrix) failSync(t *testing.T, n *cluster.Node, s faultdisk.State) {
	if m.setDisk(t, n, s) {
		diedBySelf(t, n)
	}
}

// flipBits has some bits of what one node writes to its page file flip. There is no other copy of what a node has
// alone, so it is the one that follows: the one that was killed, when it has come back, if one was. What is damaged is
// found by the scrub and repaired, for the next fault may hit the other copy.
func (m *matrix) flipBits(t *testing.T) {
	victim := m.standby
	if !m.active.Running() {
		victim = m.active
	}
	if !victim.Running() {
		require.NoError(t, victim.Start())
	}
	m.setDisk(t, victim, faultdisk.State{
		Seed: m.rng.Uint64(), Rules: []faultdisk.Rule{{
			Ops: []string{"write"}, Files: "page.db*", Flip: true, Every: 5,
			Times: 6,
		}},
	})
	<-time.After(faultTime) // the fault's own length
	m.setDisk(t, victim, soundDisk)
	m.supervise(t, victim)
	m.mend(t)
	require.Eventually(t, func() bool {
		inSync(t, m.p) // a standby whose index is damaged gets a snapshot first
		_, err := scrub(t, victim)
		return err == nil && statusOf(t, victim).GetDamage().GetDamagedMessages() == 0 &&
			len(statusOf(t, victim).GetAlarms()) == 0
	}, bound, 50*time.Millisecond, "what is damaged is not repaired")
}

// supervise starts a node again whenever it ends by itself, until the pair is in sync: what cannot be used at all, such
// as the index of a snapshot that was just installed, makes a node stop, and set it aside at the next start.
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

// powerCut takes the power of both nodes at once: what they have not synced since a moment before is lost, but for what
// the disk wrote by itself.
func (m *matrix) powerCut(t *testing.T) {
	held := faultdisk.State{Hold: true, Leak: []float64{0, 0.5, 0.9}[m.rng.IntN(3)], Seed: m.rng.Uint64()}
	for _, n := range m.p.Nodes() {
		m.setDisk(t, n, held)
	}
	<-time.After(time.Duration(m.rng.Int64N(int64(500 * time.Millisecond)))) // any moment
	m.kill(t, m.active)
	m.kill(t, m.standby)
}
