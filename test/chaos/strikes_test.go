// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"os"
	"path/filepath"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/vfs/faultdisk"
)

// inject is a kind of fault to inject into a pair under load. do returns after the fault has taken effect and has
// been repaired; the pair need not be in sync yet. A fault without an effect fails the test.
type inject struct {
	name              string
	weight            int  // relative frequency
	disk, clock, raft bool // requires injectable disk faults, adjustable clocks, a witness
	do                func(k *killer, active, standby *cluster.Node)
}

func injections() []inject {
	first := func(do func(k *killer, n *cluster.Node)) func(k *killer, active, standby *cluster.Node) {
		return func(k *killer, active, _ *cluster.Node) { do(k, active) }
	}
	second := func(do func(k *killer, n *cluster.Node)) func(k *killer, active, standby *cluster.Node) {
		return func(k *killer, _, standby *cluster.Node) { do(k, standby) }
	}
	return []inject{
		{name: "active killed", weight: 30, do: (*killer).killActive},
		{name: "standby killed", weight: 20, do: (*killer).killStandby},
		{name: "standby killed, for long", weight: 5, do: (*killer).killStandbyLong},
		{name: "active killed, then its successor", weight: 7, do: (*killer).killBothSequentially},
		{name: "both killed", weight: 6, do: (*killer).killBoth},
		{name: "active frozen", weight: 4, do: first((*killer).freeze)},
		{name: "standby frozen", weight: 3, do: second((*killer).freeze)},
		{name: "switchover", weight: 4, do: first((*killer).switchover)},
		{name: "witness killed", weight: 10, raft: true, do: (*killer).killWitness},
		{name: "an fsync of the active fails", weight: 3, disk: true, do: first((*killer).failSync)},
		{name: "an fsync of the standby fails", weight: 3, disk: true, do: second((*killer).failSync)},
		{name: "disk of the active stalls", weight: 3, disk: true, do: first((*killer).stallDisk)},
		{name: "disk of the standby stalls", weight: 3, disk: true, do: second((*killer).stallDisk)},
		{name: "disk of the active is slow", weight: 2, disk: true, do: first((*killer).slowDisk)},
		{name: "disk of the standby is slow", weight: 2, disk: true, do: second((*killer).slowDisk)},
		{name: "power cut", weight: 6, disk: true, do: (*killer).powerCut},
		{name: "clock of the active jumps", weight: 4, clock: true, do: first((*killer).jump)},
		{name: "clock of the standby jumps", weight: 3, clock: true, do: second((*killer).jump)},
		{name: "clocks of both jump", weight: 3, clock: true, do: (*killer).jumpBoth},
		{name: "clock of the witness jumps", weight: 2, clock: true, raft: true, do: (*killer).jumpWitness},
		{name: "active rolled back to an older image", weight: 3, do: first((*killer).rollBack)},
		{name: "standby rolled back to an older image", weight: 3, do: second((*killer).rollBack)},
	}
}

func (k *killer) killActive(active, _ *cluster.Node) {
	since := k.w.History().Now()
	k.kill(active)
	k.failover = append(k.failover, ackedSince(k.t, k.w, since, active))
	k.pause(150 * time.Millisecond)
	k.start(active)
}

func (k *killer) killStandby(_, standby *cluster.Node) {
	k.kill(standby)
	acked(k.t, k.w)
	k.pause(150 * time.Millisecond)
	k.start(standby)
}

// killStandbyLong keeps the standby down until its position may no longer be in the active's log. If wal.keep-bytes
// is small, the standby requires a snapshot, and is killed again during the first transfer.
func (k *killer) killStandbyLong(active, standby *cluster.Node) {
	k.kill(standby)
	k.pause(3 * time.Second)
	k.checkpoint(active)
	k.pause(100 * time.Millisecond)
	k.start(standby)
	k.pause(100 * time.Millisecond)
	k.kill(standby)
	k.start(standby)
}

// killBothSequentially kills the active, and then the node that took over, before or while the first node catches up.
// Only the node that took over may become active again.
func (k *killer) killBothSequentially(active, standby *cluster.Node) {
	k.kill(active)
	acked(k.t, k.w)
	k.start(active)
	k.pause(300 * time.Millisecond)
	k.kill(standby)
	k.pause(100 * time.Millisecond)
	k.start(standby)
	acked(k.t, k.w)
}

func (k *killer) killBoth(active, standby *cluster.Node) {
	first, second := active, standby
	if k.rng.IntN(2) == 0 {
		first, second = second, first
	}
	k.kill(first)
	k.pause(20 * time.Millisecond)
	k.kill(second)
	k.start(first)
	k.pause(50 * time.Millisecond)
	k.start(second)
	acked(k.t, k.w)
}

func (k *killer) killWitness(active, standby *cluster.Node) {
	k.kill(k.p.Witness)
	acked(k.t, k.w)
	k.start(k.p.Witness)
	if k.rng.IntN(2) == 0 { // also kill a node immediately: the roles change as soon as a quorum exists
		n := active
		if k.rng.IntN(2) == 0 {
			n = standby
		}
		k.kill(n)
		k.start(n)
		acked(k.t, k.w)
	}
}

// freeze suspends a process, which resumes without having detected the pause.
func (k *killer) freeze(n *cluster.Node) {
	require.NoError(k.t, n.Pause())
	k.pause(2 * faultTime)
	require.NoError(k.t, n.Wake())
	acked(k.t, k.w)
}

func (k *killer) switchover(*cluster.Node) { handOver(k.t, k.p) }

// failSync makes an fsync fail. The node exits, and is restarted.
func (k *killer) failSync(n *cluster.Node) {
	setDisk(k.t, n, faultdisk.State{Rules: []faultdisk.Rule{{Ops: []string{"sync"}, Times: 1, Error: "EIO"}}})
	waitExit(k.t, n)
	acked(k.t, k.w)
	k.start(n)
}

// stallDisk stalls a disk for some time.
func (k *killer) stallDisk(n *cluster.Node) {
	setDisk(k.t, n, stalledDisk)
	injected(k.t, n)
	k.pause(2 * faultTime)
	setDisk(k.t, n, healthyDisk)
	acked(k.t, k.w)
}

func (k *killer) slowDisk(n *cluster.Node) {
	setDisk(k.t, n, faultdisk.State{Rules: []faultdisk.Rule{{Delay: 10 * time.Millisecond}}})
	injected(k.t, n)
	k.pause(faultTime)
	setDisk(k.t, n, healthyDisk)
}

// powerCut cuts the power of both nodes together, so that they lose unsynced data.
func (k *killer) powerCut(active, standby *cluster.Node) {
	held := faultdisk.State{
		Hold: true, Leak: []float64{0, 0.5, 0.9}[k.rng.IntN(3)], Seed: k.rng.Uint64(),
		Rules: []faultdisk.Rule{{Ops: []string{"write"}}}, // only counts
	}
	for _, n := range k.p.Nodes() {
		setDisk(k.t, n, held)
	}
	for _, n := range k.p.Nodes() {
		injected(k.t, n)
	}
	k.pause(500 * time.Millisecond)
	k.w.History().Note("both nodes lose power")
	require.NoError(k.t, active.LosePower())
	require.NoError(k.t, standby.LosePower())
	k.start(active)
	k.start(standby)
	acked(k.t, k.w)
}

// jumps are the possible jumps of a wall clock.
var jumps = []time.Duration{time.Hour, -time.Hour, 30 * 24 * time.Hour, -30 * 24 * time.Hour} // a constant

// jump sets a clock to an incorrect time for some seconds, and then restores it.
func (k *killer) jump(n *cluster.Node) { k.jumpAll(n) }

func (k *killer) jumpBoth(active, standby *cluster.Node) { k.jumpAll(active, standby) }

func (k *killer) jumpWitness(_, _ *cluster.Node) { k.jumpAll(k.p.Witness) }

// jumpAll sets several clocks to an incorrect time. TestClockJumps verifies that the pair is not affected.
func (k *killer) jumpAll(nodes ...*cluster.Node) {
	by := jumps[k.rng.IntN(len(jumps))]
	for _, offset := range []time.Duration{by, 0} {
		for _, n := range nodes {
			k.w.History().Note("the clock of %s is %v ahead", n.Name, offset)
			require.NoError(k.t, n.SetClock(offset))
		}
		k.pause(faultTime)
		acked(k.t, k.w)
	}
}

// rollBack reverts the machine of a node to an image that is some seconds old. It does so after a kill of both
// nodes, or while the other node is running. The pair recovers automatically (docs/explanation/failover.md), and no
// acknowledged message is lost.
func (k *killer) rollBack(n *cluster.Node) {
	t := k.t
	image := filepath.Join(n.Dir, "image")
	defer func() { require.NoError(t, os.RemoveAll(image)) }()
	require.NoError(t, n.Pause())
	copyDir(t, n.DataDir(), image)
	require.NoError(t, n.Wake())
	k.w.History().Note("the directory of %s is copied", n.Name)
	acked(t, k.w)
	inSync(t, k.p)
	before := k.pins.acked()
	<-time.After(rollbackOld) // the age of the copy: not a wait for an event
	k.pins.more(t, before)
	other := k.p.Other(n)
	down := []*cluster.Node{n, other}
	if k.rng.IntN(3) == 0 {
		down = down[:1]
	}
	for _, x := range down { // freeze first, so that neither node detects the loss of the other
		require.NoError(t, x.Pause())
	}
	for _, x := range down {
		k.kill(x)
	}
	require.NoError(t, os.RemoveAll(n.DataDir()))
	require.NoError(t, os.Rename(image, n.DataDir()))
	if len(down) == 2 && k.rng.IntN(2) == 0 {
		down[0], down[1] = down[1], down[0]
	}
	for _, x := range down {
		k.start(x)
		k.pause(rollbackYoung)
	}
	acked(t, k.w)
	k.replaceVoter(n)
}

// replaceVoter replaces a voter that has a restored disk with a voter that has an empty directory, as in
// docs/explanation/failover.md. With etcd, it does nothing.
func (k *killer) replaceVoter(n *cluster.Node) {
	t := k.t
	if k.p.Witness == nil {
		return
	}
	address := k.p.VoterOf(n)
	k.kill(n)
	require.NoError(t, os.RemoveAll(filepath.Join(n.DataDir(), "raft")))
	k.start(n)
	var out []byte
	require.Eventually(t, func() bool {
		var err error
		out, err = k.p.Command(t.Context(), "pair", "replace", address, address, "--voters", k.p.Voters())
		return err == nil
	}, bound, 100*time.Millisecond, "the voter of %s was not replaced", n.Name)
	t.Logf("the voter of %s was rolled back, and was replaced: %s", n.Name, out)
	acked(t, k.w)
}
