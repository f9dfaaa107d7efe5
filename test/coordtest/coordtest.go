// SPDX-License-Identifier: Apache-2.0

// Package coordtest implements the conformance suite for coordinators.
package coordtest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
)

// bound is the timeout of all waits.
const bound = time.Minute

// exactOutage is the maximum duration of an outage test with an exact fixture.
const exactOutage = 15 * time.Second

// outageTimeout limits the requests of testMarkOutage during the outage.
const outageTimeout = time.Second

// Fixture is a fresh coordinator without a record.
type Fixture struct {
	// Connect opens another connection; the suite closes it.
	Connect func(t *testing.T) failover.Coordinator
	// Stop makes the coordinator unreachable, without data loss.
	Stop func(t *testing.T)
	// Start makes the coordinator reachable again.
	Start func(t *testing.T)
	// Exact is true if each request is sent once and receives a timely response. Otherwise, a request may be retried, so
	// that a write encounters its own effect, and a lease may expire before the test reads it.
	Exact bool
}

// Run runs the suite. fresh creates a Fixture for each subtest.
func Run(t *testing.T, fresh func(t *testing.T) Fixture) {
	t.Helper()
	runIn(t, fresh, func(t *testing.T, f func(*testing.T)) {
		t.Helper()
		f(t)
	})
}

// RunSimulated is like Run, but runs each subtest in simulated time (testing/synctest).
func RunSimulated(t *testing.T, fresh func(t *testing.T) Fixture) {
	t.Helper()
	runIn(t, fresh, synctest.Test)
}

func runIn(
	t *testing.T, fresh func(t *testing.T) Fixture, in func(t *testing.T, f func(*testing.T)),
) {
	t.Helper()
	tests := []struct {
		name string
		run  func(*testing.T, Fixture)
	}{
		{"Missing", testMissing},
		{"CreateOnce", testCreateOnce},
		{"SwapChain", testSwapChain},
		{"SwapStale", testSwapStale},
		{"SwapSameOperation", testSwapSameOperation},
		{"SwapInvalid", testSwapInvalid},
		{"Linearizable", testLinearizable},
		{"Watch", testWatch},
		{"WatchSlowReader", testWatchSlowReader},
		{"Announce", testAnnounce},
		{"Outage", testOutage},
		{"Duplicates", testDuplicates},
		{"KilledDuplicate", testKilledDuplicate},
		{"Mark", testMark},
		{"MarkConcurrent", testMarkConcurrent},
		{"MarkOutage", testMarkOutage},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			in(t, func(t *testing.T) { tt.run(t, fresh(t)) })
		})
	}
}

// RunMark runs the test of the high-water mark with a fixture that sends each request once (see Fixture.Exact).
func RunMark(t *testing.T, f Fixture) {
	t.Helper()
	f.Exact = true
	testMark(t, f)
}

// SampleRecord returns a valid first record with the operation ID op.
func SampleRecord(op string) failover.Record {
	node := failover.NodeInfo{ID: uuid.New(), Name: "a", Address: "127.0.0.1:1"}
	return failover.Record{
		Version: failover.RecordVersion, PairID: uuid.New(), Config: 1, Term: 1, Active: node.ID,
		InSync: []failover.Member{{Node: node.ID, Store: uuid.New(), Incarnation: 1}}, MinInSync: 1, OpID: op,
		Nodes: []failover.NodeInfo{node},
	}
}

func connect(t *testing.T, f Fixture) failover.Coordinator {
	t.Helper()
	c := f.Connect(t)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// limitTime fails a test of an exact fixture if the test takes longer than limit.
func limitTime(t *testing.T, f Fixture, limit time.Duration) {
	t.Helper()
	start := time.Now()
	t.Cleanup(func() {
		if f.Exact {
			require.LessOrEqual(t, time.Since(start), limit)
		}
	})
}

func timed(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	t.Cleanup(cancel)
	return ctx
}

func testMissing(t *testing.T, f Fixture) {
	c := connect(t, f)
	_, _, err := c.Load(timed(t))
	require.ErrorIs(t, err, failover.ErrNoRecord)
	Await(t, c, "missing", func(o failover.Observation) bool {
		return o.Missing && o.Record == nil &&
			o.Reachable
	})
}

// Swap retries a swap until its outcome is known, as all users of a coordinator must. If ctx ends first, it returns
// failover.ErrUnknownOutcome.
func Swap(
	ctx context.Context, c failover.Coordinator, expect failover.Revision, next failover.Record,
) (failover.Revision, error) {
	for {
		rev, err := c.Swap(ctx, expect, next)
		if !errors.Is(err, failover.ErrUnknownOutcome) || ctx.Err() != nil {
			return rev, err
		}
	}
}

func testCreateOnce(t *testing.T, f Fixture) {
	ctx := timed(t)
	const n = 4
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		c := connect(t, f)
		wg.Go(func() { _, errs[i] = Swap(ctx, c, 0, SampleRecord(fmt.Sprint(i))) })
	}
	wg.Wait()
	won := -1
	for i, err := range errs {
		if err == nil {
			require.Equal(t, -1, won, "record was created twice")
			won = i
			continue
		}
		require.ErrorIs(t, err, failover.ErrConflict)
	}
	require.NotEqual(t, -1, won)
	rec, rev, err := connect(t, f).Load(ctx)
	require.NoError(t, err)
	require.Equal(t, fmt.Sprint(won), rec.OpID)
	require.Positive(t, rev)
}

func testSwapChain(t *testing.T, f Fixture) {
	ctx := timed(t)
	a, b := connect(t, f), connect(t, f)
	rec := SampleRecord("op1")
	rec.Switchover = &failover.Switchover{ID: "s", To: uuid.New()}
	rev, err := Swap(ctx, a, 0, rec)
	require.NoError(t, err)
	for i := range 5 {
		got, at, err := b.Load(ctx)
		require.NoError(t, err)
		require.Equal(t, rec, got)
		require.Equal(t, rev, at)
		rec.Config++
		rec.OpID = fmt.Sprint("chain", i)
		next, err := Swap(ctx, b, rev, rec)
		require.NoError(t, err)
		require.Greater(t, next, rev)
		rev = next
		a, b = b, a
	}
}

func testSwapStale(t *testing.T, f Fixture) {
	ctx := timed(t)
	c := connect(t, f)
	rec := SampleRecord("op1")
	first, err := Swap(ctx, c, 0, rec)
	require.NoError(t, err)
	rec.Config, rec.OpID = 2, "op2"
	second, err := Swap(ctx, c, first, rec)
	require.NoError(t, err)

	lost := rec
	lost.Config, lost.OpID = 3, "lost"
	for _, expect := range []failover.Revision{0, first, second + 1} {
		_, err = Swap(ctx, c, expect, lost)
		require.ErrorIs(t, err, failover.ErrConflict, "expected revision %d", expect)
	}
	got, at, err := c.Load(ctx)
	require.NoError(t, err)
	require.Equal(t, rec, got)
	require.Equal(t, second, at)
}

func testSwapSameOperation(t *testing.T, f Fixture) {
	ctx := timed(t)
	a, b := connect(t, f), connect(t, f)
	rec := SampleRecord("op1")
	first, err := Swap(ctx, a, 0, rec)
	require.NoError(t, err)
	again, err := Swap(ctx, b, 0, rec) // a retry, as after an unknown outcome
	require.NoError(t, err)
	require.Equal(t, first, again)
}

func testSwapInvalid(t *testing.T, f Fixture) {
	ctx := timed(t)
	c := connect(t, f)
	rec := SampleRecord("op1")
	rec.InSync = nil
	_, err := Swap(ctx, c, 0, rec)
	require.ErrorIs(t, err, failover.ErrRecordInvalid)
	_, _, err = c.Load(ctx)
	require.ErrorIs(t, err, failover.ErrNoRecord)
}

// Await waits for an observation for which ok returns true, and returns this observation. what describes the
// observation in a failure message.
func Await(t *testing.T, c failover.Coordinator, what string, ok func(failover.Observation) bool) failover.Observation {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), bound)
	defer cancel()
	var last failover.Observation
	for o := range c.Watch(ctx) {
		if last = o; ok(o) {
			return o
		}
	}
	require.FailNow(t, "not observed: "+what, "last: %+v", last)
	return last
}

func testWatch(t *testing.T, f Fixture) {
	ctx, cancel := context.WithCancel(timed(t))
	a, b := connect(t, f), connect(t, f)
	seen := b.Watch(ctx)
	rec := SampleRecord("op1")
	rev, err := Swap(ctx, a, 0, rec)
	require.NoError(t, err)
	for i := range 3 {
		got := Await(t, b, "the record", func(o failover.Observation) bool {
			return o.Record != nil &&
				o.Record.Config == rec.Config
		})
		require.Equal(t, rec, *got.Record)
		require.Equal(t, rev, got.Revision)
		require.False(t, got.Missing)
		rec.Config++
		rec.OpID = fmt.Sprint("w", i)
		rev, err = Swap(ctx, a, rev, rec)
		require.NoError(t, err)
	}
	cancel()
	require.Eventually(t, func() bool {
		for {
			select {
			case _, ok := <-seen:
				if !ok {
					return true
				}
			default:
				return false
			}
		}
	}, bound, time.Millisecond, "channel is closed when ctx ends")
}

func testWatchSlowReader(t *testing.T, f Fixture) {
	ctx := timed(t)
	a, b := connect(t, f), connect(t, f)
	seen := b.Watch(ctx)
	rec := SampleRecord("op")
	rev, err := Swap(ctx, a, 0, rec)
	require.NoError(t, err)
	for i := range 50 {
		rec.Config++
		rec.OpID = fmt.Sprint("w", i)
		rev, err = Swap(ctx, a, rev, rec)
		require.NoError(t, err)
	}
	var last uint64
	for o := range seen {
		if o.Record == nil {
			continue
		}
		require.GreaterOrEqual(t, o.Record.Config, last, "the watch reported an older record")
		if last = o.Record.Config; last == rec.Config {
			return
		}
	}
	require.FailNow(t, "newest record was not observed", "last config %d of %d", last, rec.Config)
}

func testAnnounce(t *testing.T, f Fixture) {
	a, b := connect(t, f), connect(t, f)
	ctx, cancel := context.WithCancel(timed(t))
	live := failover.Live{Node: failover.NodeInfo{ID: uuid.New(), Name: "a", Address: "h:1"}, Process: "p1"}
	done := make(chan error, 1)
	go func() { done <- a.Announce(ctx, live) }()

	o := Await(t, b, "the liveness key", func(o failover.Observation) bool {
		_,
			ok := o.LiveNode(live.Node.ID)
		return ok
	})
	require.Equal(t, []failover.Live{live}, o.Live)
	require.Zero(t, o.LeaseUntil, "Announce changed the lease of another process")
	o = Await(t, a, "a lease that has not expired", func(o failover.Observation) bool {
		if f.Exact && !o.LeaseUntil.IsZero() {
			require.Positive(t, time.Until(o.LeaseUntil))
		}
		return time.Until(o.LeaseUntil) > 0
	})
	first := o.LeaseUntil
	Await(t, a, "renewed lease", func(o failover.Observation) bool { return o.LeaseUntil.After(first) })

	cancel()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(bound):
		require.FailNow(t, "Announce did not return when its context was canceled")
	}
	Await(t, b, "no liveness key", func(o failover.Observation) bool { return len(o.Live) == 0 && o.LiveKnown })
}

func testOutage(t *testing.T, f Fixture) {
	limitTime(t, f, exactOutage)
	ctx := timed(t)
	a, b := connect(t, f), connect(t, f)
	actx, cancel := context.WithCancel(t.Context()) // no timeout: stopping and starting a coordinator may take long
	live := failover.Live{Node: failover.NodeInfo{ID: uuid.New(), Name: "a", Address: "h:1"}, Process: "p1"}
	done := make(chan error, 1)
	go func() { done <- a.Announce(actx, live) }()
	rec := SampleRecord("op1")
	rev, err := Swap(ctx, a, 0, rec)
	require.NoError(t, err)
	Await(t, a, "reachable", func(o failover.Observation) bool { return o.Reachable && len(o.Live) == 1 })

	f.Stop(t)
	Await(t, a, "not reachable", func(o failover.Observation) bool { return !o.Reachable })
	short, cancelShort := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancelShort()
	_, _, err = a.Load(short)
	require.ErrorIs(t, err, failover.ErrUnreachable)
	next := rec
	next.Config, next.OpID = 2, "during"
	_, err = b.Swap(short, rev, next)
	require.ErrorIs(t, err, failover.ErrUnknownOutcome)
	require.NotErrorIs(t, err, failover.ErrConflict)

	f.Start(t)
	Await(t, a, "reachable again", func(o failover.Observation) bool { return o.Reachable && o.Record != nil })
	ctx = timed(t)
	require.Eventually(t, func() bool {
		now, at, err := b.Load(ctx)
		if err != nil {
			return false
		}
		next = now
		next.Config, next.OpID = now.Config+1, "after"
		_, err = b.Swap(ctx, at, next)
		return err == nil
	}, bound, 20*time.Millisecond)
	Await(t, a, "change after the outage",
		func(o failover.Observation) bool { return o.Record != nil && o.Record.OpID == "after" })
	Await(t, b, "the liveness key", func(o failover.Observation) bool { return len(o.Live) == 1 })
	cancel()
	require.NoError(t, <-done)
}

// casInput and casOutput describe one operation of the linearizability test.
type casInput struct {
	load   bool
	expect string // OpID expected by the swap
	next   string
}

type casOutput struct {
	op string // result of a load
	ok bool   // the swap was applied
}

func casModel() porcupine.Model {
	return porcupine.Model{
		Init: func() any { return "" },
		Step: func(state, input, output any) (bool, any) {
			now, in, out := state.(string), input.(casInput), output.(casOutput)
			switch {
			case in.load:
				return out.op == now, now
			case out.ok:
				return now == in.expect, in.next
			default:
				return now != in.expect, now
			}
		},
	}
}

// done returns the swaps with an unknown outcome that a client has observed as applied, with end as their return
// time. The remaining swaps had no effect visible to a client.
func done(unknown, history []porcupine.Operation, end int64) []porcupine.Operation {
	seen := make(map[string]bool)
	for _, op := range history {
		seen[op.Input.(casInput).expect] = true
		seen[op.Output.(casOutput).op] = true
	}
	for _, op := range unknown {
		seen[op.Input.(casInput).expect] = true
	}
	var out []porcupine.Operation
	for _, op := range unknown {
		if seen[op.Input.(casInput).next] {
			op.Return = end
			out = append(out, op)
		}
	}
	return out
}

// testLinearizable checks the recorded history of concurrent clients for linearizability.
func testLinearizable(t *testing.T, f Fixture) {
	ctx := timed(t)
	const clients, rounds = 4, 25
	var mu sync.Mutex
	var history, unknown []porcupine.Operation
	// Use a logical clock: the checker requires the order of calls and returns, and simulated time does not advance
	// between them.
	var clock atomic.Int64
	var wg sync.WaitGroup
	for i := range clients {
		c := connect(t, f)
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			record := func(in casInput, out casOutput, call int64) {
				ret := clock.Add(1)
				mu.Lock()
				defer mu.Unlock()
				history = append(history, porcupine.Operation{
					ClientId: i, Input: in, Output: out, Call: call,
					Return: ret,
				})
			}
			for n := range rounds {
				call := clock.Add(1)
				rec, rev, err := c.Load(ctx)
				if err != nil && !errors.Is(err, failover.ErrNoRecord) {
					continue
				}
				record(casInput{load: true}, casOutput{op: rec.OpID}, call)
				if rng.IntN(3) == 0 {
					continue
				}
				next := SampleRecord(fmt.Sprintf("%d/%d", i, n))
				call = clock.Add(1)
				_, err = c.Swap(ctx, rev, next)
				in := casInput{expect: rec.OpID, next: next.OpID}
				if errors.Is(err, failover.ErrUnknownOutcome) {
					mu.Lock()
					unknown = append(unknown, porcupine.Operation{
						ClientId: clients + len(unknown), Input: in,
						Output: casOutput{ok: true}, Call: call,
					})
					mu.Unlock()
					continue
				}
				record(in, casOutput{ok: err == nil}, call)
			}
		})
	}
	wg.Wait()
	history = append(history, done(unknown, history, clock.Add(1))...)
	require.True(t, porcupine.CheckOperations(casModel(), history),
		"the history of loads and swaps is not linearizable")
}
