// SPDX-License-Identifier: Apache-2.0

package raft_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// The witness leads whenever possible, so that a killed node is not the leader.
func TestWitnessIsPreferred(t *testing.T) { simulate(t, testWitnessIsPreferred) }

func testWitnessIsPreferred(t *testing.T) {
	c := startCluster(t)
	a := c.connect(nodeA)
	rec := coordtest.SampleRecord("op1")
	rev, err := a.Swap(timed(t), 0, rec)
	require.NoError(t, err)

	c.stop(witness)
	rec.Config, rec.OpID = 2, "without the witness"
	rev, err = a.Swap(timed(t), rev, rec)
	require.NoError(t, err)
	require.NotEqual(t, witness, c.voters[nodeA].Status().LeaderAddress)

	c.start(witness)
	c.awaitLeader(witness)
	c.stop(nodeB)
	rec.Config, rec.OpID = 3, "without a node"
	_, err = a.Swap(timed(t), rev, rec)
	require.NoError(t, err)
	c.awaitLeader(witness)
}

// The outcome of a swap is unknown if an isolated leader accepted the swap. After another leader has committed a
// swap, the first swap is not applied.
func TestUnknownOutcome(t *testing.T) { simulate(t, testUnknownOutcome) }

func testUnknownOutcome(t *testing.T) {
	c := startCluster(t)
	w, a := c.connect(witness), c.connect(nodeA)
	first := coordtest.SampleRecord("op1")
	rev, err := w.Swap(timed(t), 0, first)
	require.NoError(t, err)

	c.net.isolate(witness, true)
	lost := first
	lost.Config, lost.OpID = 2, "lost"
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = w.Swap(short, rev, lost)
	require.ErrorIs(t, err, failover.ErrUnknownOutcome)

	won := first
	won.Config, won.OpID = 2, "won"
	var next failover.Revision
	require.Eventually(t, func() bool {
		next, err = a.Swap(timed(t), rev, won)
		return err == nil
	}, bound, time.Millisecond)
	c.net.isolate(witness, false)
	got, at, err := w.Load(timed(t))
	require.NoError(t, err)
	require.Equal(t, won, got)
	require.Equal(t, next, at)
	c.awaitLeader(witness) // a later return of the witness could cause another unknown outcome
	_, err = w.Swap(timed(t), rev, lost)
	require.ErrorIs(t, err, failover.ErrConflict, "a discarded swap was applied")
}

// observed waits for an observation. The test fails if the watch ends first.
func observed(
	t *testing.T, seen <-chan failover.Observation, what string, ok func(failover.Observation) bool,
) (last failover.Observation) {
	t.Helper()
	for last = range seen {
		if ok(last) {
			return last
		}
	}
	require.FailNow(t, "the watch ended before "+what, "the last observation: %+v", last)
	return last
}

// A leader without a majority neither serves reads nor grants leases.
func TestIsolatedLeaderIsUnreachable(t *testing.T) { simulate(t, testIsolatedLeaderIsUnreachable) }

func testIsolatedLeaderIsUnreachable(t *testing.T) {
	c := startCluster(t)
	w := c.connect(witness)
	_, err := w.Swap(timed(t), 0, coordtest.SampleRecord("op1"))
	require.NoError(t, err)
	c.net.isolate(witness, true)
	require.Eventually(t, func() bool { // requests in flight before the cut may still be answered
		short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		_, _, err = w.Load(short)
		return errors.Is(err, failover.ErrUnreachable)
	}, 20*time.Second, time.Millisecond)
	observed(t, w.Watch(timed(t)), "it reports that no voter is reachable",
		func(o failover.Observation) bool { return !o.Reachable })
	c.net.isolate(witness, false)
	o := observed(t, w.Watch(timed(t)), "the other voters are reachable again",
		func(o failover.Observation) bool { return o.Reachable })
	require.NotNil(t, o.Record)
}

// A leader that stops responding is replaced, and every node finds the new one.
func TestSilentLeader(t *testing.T) { simulate(t, testSilentLeader) }

func testSilentLeader(t *testing.T) {
	c := startCluster(t)
	a, b := c.connect(nodeA), c.connect(nodeB)
	rec := coordtest.SampleRecord("op1")
	rev, err := a.Swap(timed(t), 0, rec)
	require.NoError(t, err)
	c.net.dropTraffic(witness, true)
	rec.Config, rec.OpID = 2, "op2"
	_, err = b.Swap(timed(t), rev, rec)
	require.NoError(t, err)
	observed(t, a.Watch(timed(t)), "the new record is seen", func(o failover.Observation) bool {
		return o.Reachable && o.Record != nil && o.Record.OpID == rec.OpID
	})
	got, _, err := a.Load(timed(t))
	require.NoError(t, err)
	require.Equal(t, rec, got)
	c.net.dropTraffic(witness, false)
	c.awaitLeader(witness)
}

// A node that cannot reach the leader sends its requests through the other node's voter.
func TestRequestForwardedByOtherVoter(t *testing.T) { simulate(t, testRequestForwardedByOtherVoter) }

func testRequestForwardedByOtherVoter(t *testing.T) {
	c := startCluster(t)
	a := c.connect(nodeA)
	rec := coordtest.SampleRecord("op1")
	rev, err := a.Swap(timed(t), 0, rec)
	require.NoError(t, err)
	c.net.cutLink(nodeA, witness, true)
	rec.Config, rec.OpID = 2, "forwarded"
	require.Eventually(t, func() bool {
		rev, err = a.Swap(timed(t), rev, rec)
		return err == nil
	}, bound, time.Millisecond)
	observed(t, a.Watch(timed(t)), "the new record is seen", func(o failover.Observation) bool {
		return o.Reachable && o.Record != nil && o.Record.OpID == rec.OpID
	})
	got, at, err := a.Load(timed(t))
	require.NoError(t, err)
	require.Equal(t, rec, got)
	require.Equal(t, rev, at)
	c.net.cutLink(nodeA, witness, false)
	c.awaitLeader(witness)
}

// A leader with a stalled disk stops sending, and another voter is elected.
func TestStalledDisk(t *testing.T) { simulate(t, testStalledDisk) }

func testStalledDisk(t *testing.T) {
	c := startCluster(t)
	a := c.connect(nodeA)
	release := c.voters[witness].StallDisk()
	t.Cleanup(release)
	rec := coordtest.SampleRecord("op1")
	rev, err := a.Swap(timed(t), 0, rec) // the witness is blocked in this write
	require.NoError(t, err)
	for i := range 10 {
		rec.Config, rec.OpID = uint64(i+2), fmt.Sprint("op", i+2)
		rev, err = a.Swap(timed(t), rev, rec)
		require.NoError(t, err)
		require.NotEqual(t, witness, c.voters[nodeA].Status().LeaderAddress)
	}
	release()
	c.awaitLeader(witness)
}

// A new leader reports an announced process as running until it has received the process's renewal.
func TestLivenessOutlivesLeader(t *testing.T) { simulate(t, testLivenessOutlivesLeader) }

func testLivenessOutlivesLeader(t *testing.T) {
	c := newCluster(t, func(o *raft.Options) { o.LeaseTTL = 4 * time.Second })
	for _, name := range names() {
		c.start(name)
	}
	c.awaitLeader(witness)
	a, b := c.connect(nodeA), c.connect(nodeB)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	live := failover.Live{Node: failover.NodeInfo{ID: uuid.New(), Name: "a"}, Process: "p"}
	go func() { done <- a.Announce(ctx, live) }()
	defer func() {
		cancel()
		require.NoError(t, <-done)
	}()
	seen := b.Watch(timed(t))
	observed(t, seen, "the other node sees the process",
		func(o failover.Observation) bool { return len(o.Live) == 1 && o.LiveKnown })
	c.stop(witness)
	_, err := a.Swap(timed(t), 0, coordtest.SampleRecord("op1")) // another voter leads
	require.NoError(t, err)
	observed(t, seen, "the other node sees the record", func(o failover.Observation) bool {
		require.Equal(t, []failover.Live{live}, o.Live)
		return o.Record != nil
	})
}

// After a restart of all voters, their IDs and the record are unchanged. The test uses TCP and real time.
func TestRestartOfAll(t *testing.T) {
	t.Parallel()
	c := newClusterOn(t, newNetwork(nil), nil)
	c.startAll()
	rec := coordtest.SampleRecord("op1")
	k := c.voters[nodeA].Connect()
	rev, err := k.Swap(timed(t), 0, rec)
	require.NoError(t, err)
	require.NoError(t, k.Close())
	ids := map[string]string{}
	for _, name := range names() {
		ids[name] = c.voters[name].ID()
		c.stop(name)
	}
	for _, name := range names() {
		require.Equal(t, ids[name], c.start(name).ID())
	}
	got, at, err := c.connect(nodeB).Load(timed(t))
	require.NoError(t, err)
	require.Equal(t, rec, got)
	require.Equal(t, rev, at)
}

type input struct {
	load         bool
	expect, next string
}

type output struct {
	op      string
	ok      bool
	unknown bool
}

// model is a compare-and-swap register with unknown outcomes.
func model() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Init: func() []any { return []any{""} },
		Step: func(state, in, out any) []any {
			now, i, o := state.(string), in.(input), out.(output)
			switch {
			case i.load && o.op == now:
				return []any{now}
			case i.load:
				return nil
			case o.unknown && now == i.expect:
				return []any{now, i.next}
			case o.unknown, !o.ok && now != i.expect:
				return []any{now}
			case o.ok && now == i.expect:
				return []any{i.next}
			default:
				return nil
			}
		},
	}
	return m.ToModel()
}

// checkTime limits the linearizability check, which takes milliseconds for a valid history.
const checkTime = 20 * time.Second

// Two nodes swap while voters are killed and isolated one after the other. The history is linearizable.
func TestLinearizableUnderFaults(t *testing.T) { simulate(t, testLinearizableUnderFaults) }

func testLinearizableUnderFaults(t *testing.T) {
	c := startCluster(t)
	stop := make(chan struct{})
	var mu sync.Mutex
	var history []porcupine.Operation
	var clock atomic.Int64
	var wg sync.WaitGroup
	for i, name := range []string{nodeA, nodeB} {
		k := c.connect(name)
		wg.Go(func() {
			record := func(in input, out output, call int64) {
				ret := clock.Add(1)
				if out.unknown {
					ret = math.MaxInt64 // the swap may be applied at any later time
				}
				mu.Lock()
				defer mu.Unlock()
				history = append(history, porcupine.Operation{
					ClientId: i, Input: in, Output: out, Call: call, Return: ret,
				})
			}
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond):
				}
				swapOnce(k, fmt.Sprintf("%d/%d", i, n), &clock, record)
			}
		})
	}
	faults(t, c)
	close(stop)
	wg.Wait()
	done := 0
	for _, op := range history {
		if op.Output.(output).ok {
			done++
		}
	}
	t.Logf("%d operations, %d swaps done", len(history), done)
	require.Positive(t, done)
	result := porcupine.CheckOperationsTimeout(model(), history, checkTime)
	require.Equal(t, porcupine.Ok, result, "the history of loads and swaps is not linearizable, or was not "+
		"checked within %v", checkTime)
}

// swapOnce loads and replaces the record. clock is a logical clock: the checker requires the order of calls and
// returns, and simulated time does not advance between them.
func swapOnce(k *raft.Coordinator, op string, clock *atomic.Int64, record func(input, output, int64)) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	call := clock.Add(1)
	rec, rev, err := k.Load(ctx)
	if err != nil && !errors.Is(err, failover.ErrNoRecord) {
		return
	}
	record(input{load: true}, output{op: rec.OpID}, call)
	next := coordtest.SampleRecord(op)
	call = clock.Add(1)
	_, err = k.Swap(ctx, rev, next)
	record(input{expect: rec.OpID, next: op}, output{ok: err == nil, unknown: err != nil &&
		!errors.Is(err, failover.ErrConflict)}, call)
}

// faults repeatedly isolates or kills the leader. The two nodes' voters are only isolated, because their coordinators
// are in use.
func faults(t *testing.T, c *cluster) {
	t.Helper()
	works := func() {
		k := c.voters[nodeA].Connect()
		defer k.Close()
		_, _, err := k.Load(timed(t))
		require.True(t, err == nil || errors.Is(err, failover.ErrNoRecord), "%v", err)
	}
	for range 2 {
		lead := c.voters[nodeA].Status().LeaderAddress
		if lead == "" {
			lead = witness
		}
		c.net.isolate(lead, true)
		require.Eventually(t, func() bool {
			for _, name := range names() {
				if name != lead && c.voters[name].Status().State == "Leader" {
					return true
				}
			}
			return false
		}, bound, time.Millisecond)
		c.net.isolate(lead, false)
		works()
		c.stop(witness)
		works()
		c.start(witness)
		c.awaitLeader(witness)
	}
}
