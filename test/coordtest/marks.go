// SPDX-License-Identifier: Apache-2.0

package coordtest

import (
	"context"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
)

// writeMark retries a write of the mark until it succeeds, because a coordinator may reject marks shortly after its
// start. It returns the previous mark.
func writeMark(ctx context.Context, t *testing.T, c failover.Coordinator, m failover.Mark) failover.Mark {
	t.Helper()
	var err error
	for ctx.Err() == nil {
		var before failover.Mark
		if before, err = c.WriteMark(ctx, m); err == nil {
			return before
		}
	}
	require.NoError(t, err, "write the mark %v", m)
	return failover.Mark{}
}

// raiseMark raises the mark until a write returns the expected previous mark, and returns the new mark. A write that
// is retried after a timeout may return its own mark as the previous mark, which is not a failure.
func raiseMark(ctx context.Context, t *testing.T, c failover.Coordinator, from failover.Mark) failover.Mark {
	t.Helper()
	for range 100 {
		next := from
		next.LSN++
		before := writeMark(ctx, t, c, next)
		if before == from {
			return next
		}
		require.Equal(t, next, before, "neither the previous mark nor the written one")
		from = next
	}
	require.FailNow(t, "no write of a mark returned the previous one")
	return failover.Mark{}
}

func requireMark(ctx context.Context, t *testing.T, c failover.Coordinator, want failover.Mark) {
	t.Helper()
	got, err := c.LoadMark(ctx)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// testMark verifies that a mark only rises, is visible to all connections, and does not affect the record.
func testMark(t *testing.T, f Fixture) {
	ctx := timed(t)
	a, b := connect(t, f), connect(t, f)
	requireMark(ctx, t, a, failover.Mark{})
	rec := SampleRecord("op1")
	rev, err := Swap(ctx, a, 0, rec)
	require.NoError(t, err)
	requireMark(ctx, t, b, failover.Mark{})

	low := failover.Mark{By: 3, Term: 2, LSN: 90}
	writeMark(ctx, t, a, low)
	high := failover.Mark{By: 3, Term: 2, LSN: 100}
	if f.Exact {
		require.Equal(t, low, writeMark(ctx, t, a, high))
	} else {
		high = raiseMark(ctx, t, a, low)
	}
	requireMark(ctx, t, a, high)
	requireMark(ctx, t, b, high)
	for _, old := range []failover.Mark{{}, {By: 3, Term: 2, LSN: 90}, {By: 2, Term: 2, LSN: 1000}, high} {
		// This write simulates a delayed request, or a request from a disconnected node.
		require.Equal(t, high, writeMark(ctx, t, b, old))
		requireMark(ctx, t, a, high)
	}
	// A forced failover begins a term with a lower position.
	forced := failover.Mark{By: 4, Term: 4, LSN: 50}
	before := writeMark(ctx, t, b, forced)
	if before == forced && !f.Exact {
		before = high // the write was sent twice
	}
	require.Equal(t, high, before)
	requireMark(ctx, t, a, forced)
	require.Equal(t, forced, writeMark(ctx, t, a, high), "another connection has written this mark since")
	requireMark(ctx, t, b, forced)

	got, at, err := b.Load(ctx)
	require.NoError(t, err)
	require.Equal(t, rec, got)
	require.Equal(t, rev, at, "a mark changed the record's revision")
	rec.Config, rec.OpID = 2, "op2"
	_, err = Swap(ctx, a, rev, rec)
	require.NoError(t, err, "a mark changed the record's revision")
	requireMark(ctx, t, a, forced)
}

// testMarkConcurrent verifies that the highest of concurrently written marks remains, and that the mark never
// decreases for a reader.
func testMarkConcurrent(t *testing.T, f Fixture) {
	ctx := timed(t)
	const writers, rounds = 3, 20
	_, err := Swap(ctx, connect(t, f), 0, SampleRecord("op1"))
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range writers {
		c := connect(t, f)
		writeMark(ctx, t, c, failover.Mark{By: 1, Term: 1})
		wg.Go(func() {
			var last failover.Mark
			for n := range rounds {
				mine := failover.Mark{By: 1, Term: 1, LSN: uint64(n*writers + i + 1)}
				if _, err := c.WriteMark(ctx, mine); err != nil {
					continue
				}
				now, err := c.LoadMark(ctx)
				if err != nil {
					continue
				}
				if now.Less(mine) || now.Less(last) {
					t.Errorf("the mark is %v after %v was written and %v read", now, mine, last)
				}
				last = now
			}
		})
	}
	wg.Wait()
	c := connect(t, f)
	highest := failover.Mark{By: 1, Term: 1, LSN: writers * rounds}
	writeMark(ctx, t, c, highest)
	requireMark(ctx, t, c, highest)
}

// testMarkOutage verifies that a mark survives an outage, during which it can be neither written nor read.
func testMarkOutage(t *testing.T, f Fixture) {
	limitTime(t, f, exactOutage)
	ctx := timed(t)
	a, b := connect(t, f), connect(t, f)
	_, err := Swap(ctx, a, 0, SampleRecord("op1"))
	require.NoError(t, err)
	mark := failover.Mark{By: 1, Term: 1, LSN: 7}
	writeMark(ctx, t, a, mark)
	Await(t, b, "reachable", func(o failover.Observation) bool { return o.Reachable })

	f.Stop(t)
	Await(t, b, "not reachable", func(o failover.Observation) bool { return !o.Reachable })
	short, cancel := context.WithTimeout(t.Context(), outageTimeout)
	defer cancel()
	_, err = a.WriteMark(short, failover.Mark{By: 1, Term: 1, LSN: 8})
	require.Error(t, err)
	_, err = b.LoadMark(short)
	require.ErrorIs(t, err, failover.ErrUnreachable)

	f.Start(t)
	ctx = timed(t)
	var got failover.Mark
	for got, err = b.LoadMark(ctx); err != nil && ctx.Err() == nil; {
		got, err = b.LoadMark(ctx)
	}
	require.NoError(t, err)
	require.False(t, got.Less(mark), "mark %v was lost: %v", mark, got)
	writeMark(ctx, t, b, failover.Mark{By: 1, Term: 1, LSN: 9})
	requireMark(ctx, t, a, failover.Mark{By: 1, Term: 1, LSN: 9})
}
