// SPDX-License-Identifier: Apache-2.0

package history

import (
	"context"
	"maps"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

type fakeSource struct {
	totals            Totals
	queues            []Queue
	current, detached map[uint64]uint64
	accepted          time.Time // of all oldest messages
}

func (f *fakeSource) Totals() (Totals, error) { return f.totals, nil }

func (f *fakeSource) Queues(yield func(Queue)) {
	for _, q := range f.queues {
		yield(q)
	}
}

func (f *fakeSource) Delivered() (current, detached map[uint64]uint64) {
	detached, f.detached = f.detached, nil
	return f.current, detached
}

func (f *fakeSource) Oldest(id uint64) (uint64, bool) {
	if i := slices.IndexFunc(f.queues, func(q Queue) bool { return q.ID == id }); i >= 0 && f.queues[i].Messages > 0 {
		return f.queues[i].NextSequence - f.queues[i].Messages, true
	}
	return 0, false
}

func (f *fakeSource) AcceptedAt(context.Context, uint64, uint64) (time.Time, bool) {
	return f.accepted, true
}

// change publishes to a queue and removes messages from it.
func (f *fakeSource) change(i int, published, removed uint64) {
	q := &f.queues[i]
	q.NextSequence, q.Messages = q.NextSequence+published, q.Messages+published-removed
	q.Bytes = 100 * q.Messages
	f.totals.Published, f.totals.Acknowledged = f.totals.Published+published, f.totals.Acknowledged+removed
	f.totals.Messages, f.totals.Bytes = f.totals.Messages+published-removed, f.totals.Bytes+100*(published-removed)
}

func withQueues(n int) *fakeSource {
	f := &fakeSource{current: make(map[uint64]uint64)}
	for i := range n {
		f.queues = append(f.queues, Queue{ID: uint64(i + 1), NextSequence: 1})
	}
	return f
}

// start is a multiple of all intervals.
var start = time.Unix(1_800_000_000, 0)

func sample(t *testing.T, r *Recorder, s Source, at time.Time) {
	t.Helper()
	require.NoError(t, r.Sample(t.Context(), s, at, true))
}

func nan() float64 { return math.NaN() }

// equal compares points. NaN is equal to NaN.
func equal(t *testing.T, want, got []Point) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.True(t, want[i].At.Equal(got[i].At), "%s, not %s", got[i].At, want[i].At)
		of := func(p Point) []float64 {
			return []float64{p.Published, p.Delivered, p.Acknowledged, p.Messages, p.Bytes, p.OldestAge}
		}
		require.InDeltaSlice(t, of(want[i]), of(got[i]), 0, want[i].At)
	}
}

// A point contains the rates since the previous sample, and the depth and age at the time of the sample. Its time
// is the multiple of the interval that is nearest to the sample.
func TestPoints(t *testing.T) {
	r, s := New(), withQueues(1)
	sample(t, r, s, start)
	s.change(0, 100, 0)
	s.accepted = start.Add(4 * time.Second)
	s.current[1], s.totals.Delivered = 30, 30
	sample(t, r, s, start.Add(10*time.Second))
	s.change(0, 0, 67)
	delete(s.current, 1) // its consumer has detached
	s.detached, s.totals.Delivered = map[uint64]uint64{1: 50}, 50
	sample(t, r, s, start.Add(20*time.Second+300*time.Millisecond))
	s.change(0, 0, 33)
	sample(t, r, s, start.Add(30*time.Second-time.Millisecond)) // 9.699 s after the previous sample
	now := start.Add(35 * time.Second)

	want := []Point{
		{start, nan(), nan(), nan(), 0, 0, 0},
		{start.Add(10 * time.Second), 10, 3, 0, 100, 10_000, 6},
		{start.Add(20 * time.Second), 0, wide(float32(20 / 10.3)), wide(float32(67 / 10.3)), 33, 3_300, 16.3},
		{start.Add(30 * time.Second), 0, 0, wide(float32(33 / 9.699)), 0, 0, 0},
	}
	interval, got := r.Points(1, time.Hour, now)
	require.Equal(t, Interval, interval)
	equal(t, want, got)
	_, got = r.Points(0, time.Hour, now)
	equal(t, want, got)
	_, got = r.Points(1, 20*time.Second, now)
	equal(t, want[2:], got)
	_, got = r.Points(2, time.Hour, now)
	require.Empty(t, got)
	interval, got = r.Points(1, Day, now)
	require.Equal(t, DayInterval, interval)
	equal(t, []Point{{start, nan(), nan(), nan(), 0, 0, 0}}, got) // the next minute is incomplete
}

// A queue that was created between two samples is compared with an empty queue.
func TestCreatedQueue(t *testing.T) {
	r, s := New(), withQueues(0)
	require.NoError(t, r.Sample(t.Context(), s, start.Add(5*time.Second), false))
	s.queues = []Queue{{ID: 7, NextSequence: 1}}
	s.change(0, 50, 50)
	sample(t, r, s, start.Add(10*time.Second))
	_, got := r.Points(7, time.Hour, start.Add(10*time.Second))
	equal(t, []Point{{start.Add(10 * time.Second), 10, 0, 10, 0, 0, 0}}, got)
	s.queues = nil // deleted
	sample(t, r, s, start.Add(20*time.Second))
	_, got = r.Points(7, time.Hour, start.Add(20*time.Second))
	require.Empty(t, got)
}

// The point of a minute contains the mean rates and the last depth. Intervals without samples are missing, even
// after a day.
func TestMinutesAndGaps(t *testing.T) {
	r, s := New(), withQueues(1)
	sample(t, r, s, start)
	for i := range 6 {
		s.change(0, uint64(10*i), 0)
		s.accepted = start
		sample(t, r, s, start.Add(time.Duration(i+1)*Interval))
	}
	resumed := start.Add(10 * time.Minute)
	other := &fakeSource{queues: s.queues, totals: s.totals, accepted: start} // after a restart of the session
	sample(t, r, other, resumed)
	other.change(0, 20, 0)
	sample(t, r, other, resumed.Add(Interval))
	now := resumed.Add(time.Minute)

	_, got := r.Points(1, time.Hour, now)
	require.Len(t, got, 9)
	equal(t, []Point{
		{resumed, nan(), nan(), nan(), 150, 15_000, 600},
		{resumed.Add(Interval), 2, 0, 0, 170, 17_000, 610},
	}, got[7:])
	_, got = r.Points(1, Day, now)
	equal(t, []Point{
		{start, nan(), nan(), nan(), 0, 0, 0},
		{start.Add(time.Minute), 2.5, 0, 0, 150, 15_000, 60},
		{resumed, nan(), nan(), nan(), 150, 15_000, 600},
		{now, 2, 0, 0, 170, 17_000, 610},
	}, got)

	late := now.Add(30 * time.Hour)
	sample(t, r, other, late)
	for _, since := range []time.Duration{time.Hour, Day} {
		_, got = r.Points(1, since, late)
		require.Len(t, got, 1)
	}
	sample(t, r, other, start) // the clock was set back
	_, got = r.Points(1, time.Hour, start)
	require.Len(t, got, 1)
}

// The recorder retains an hour of samples and a day of minutes.
func TestRecordsWholeDay(t *testing.T) {
	r, s := New(), withQueues(1)
	n := int(Day/Interval) + 500
	for i := range n {
		s.change(0, uint64(10*i), 0)
		sample(t, r, s, start.Add(time.Duration(i)*Interval))
	}
	now := start.Add(time.Duration(n-1) * Interval)
	_, got := r.Points(1, time.Hour, now)
	require.Len(t, got, 360)
	for i, p := range got {
		require.InDelta(t, n-360+i, p.Published, 0)
	}
	_, got = r.Points(1, Day, now)
	require.Len(t, got, 1440)
	for i := 1; i < len(got); i++ {
		require.Equal(t, DayInterval, got[i].At.Sub(got[i-1].At))
		require.InDelta(t, 6, got[i].Published-got[i-1].Published, 0)
	}
}

// A queue with more traffic replaces the recorded queue that has the least traffic.
func TestMostActiveQueues(t *testing.T) {
	r, s := New(), withQueues(MaxQueues+50)
	recorded := func(id int) bool {
		_, got := r.Points(uint64(id), time.Hour, start.Add(time.Hour))
		return len(got) > 0
	}
	at := start
	next := func() {
		at = at.Add(Interval)
		sample(t, r, s, at)
	}
	next()
	require.True(t, recorded(1))
	require.False(t, recorded(MaxQueues+10))
	for range 5 {
		for i := range MaxQueues - 1 {
			s.change(i, 10, 5)
		}
		s.change(MaxQueues+9, 1, 1)
		next()
	}
	require.True(t, recorded(MaxQueues+10), "it replaces the only idle queue")
	require.False(t, recorded(MaxQueues))
	require.False(t, recorded(MaxQueues+11))
	s.change(MaxQueues+10, 1000, 0)
	next()
	require.True(t, recorded(MaxQueues+11))
	require.False(t, recorded(MaxQueues+10), "it had the least traffic")
	s.change(MaxQueues+9, 1, 1)
	next()
	require.False(t, recorded(MaxQueues+10), "the others have more traffic")
	require.Len(t, r.queues, MaxQueues)
	require.Len(t, r.others, 50)

	s.queues = s.queues[:10]
	next()
	require.Len(t, r.queues, 10)
	require.Empty(t, r.others)
}

// A copy that is updated repeatedly contains the same points as the original. The node with the copy continues the
// recording when it becomes active.
func TestCopy(t *testing.T) {
	from, to, s := New(), New(), withQueues(3)
	since := to.Paste(from.Copy(time.Time{}))
	require.Zero(t, since)
	at := start
	for i := range 500 {
		at = at.Add(Interval)
		s.change(i%3, uint64(i), uint64(i/2))
		sample(t, from, s, at)
		if i%7 == 0 {
			part := from.Copy(since)
			if i > 0 {
				require.LessOrEqual(t, len(part[0].Recent.Values), 8*valueCount)
			}
			since = to.Paste(part)
			require.True(t, since.Equal(at))
		}
	}
	same := func(to *Recorder) {
		t.Helper()
		for id := range uint64(4) {
			for _, period := range []time.Duration{time.Hour, Day} {
				_, want := from.Points(id, period, at)
				_, got := to.Points(id, period, at)
				equal(t, want, got)
			}
		}
	}
	to.Paste(from.Copy(since))
	same(to)
	whole := New()
	whole.Paste(from.Copy(time.Time{}))
	same(whole)

	s.queues = s.queues[:2]
	sample(t, from, s, at.Add(Interval))
	to.Paste(from.Copy(since))
	_, got := to.Points(3, time.Hour, at)
	require.Empty(t, got)

	next := &fakeSource{queues: s.queues, totals: s.totals}
	at = at.Add(2 * Interval)
	require.NoError(t, to.Sample(t.Context(), next, at.Add(3*time.Second), false))
	next.change(0, 14, 0)
	at = at.Add(Interval)
	sample(t, to, next, at)
	_, got = to.Points(1, time.Hour, at)
	require.InDelta(t, 2, got[len(got)-1].Published, 0)
	require.Equal(t, 2*Interval, got[len(got)-1].At.Sub(got[len(got)-2].At), "only the point of the failover is missing")
}

// Invalid ranges in a copy are ignored, and the number of queues is limited.
func TestInvalidCopies(t *testing.T) {
	r := New()
	for _, c := range []Range{
		{First: 1, Values: make([]float32, 10_000*valueCount)},
		{First: -1, Values: make([]float32, valueCount)},
		{First: math.MaxInt64, Values: make([]float32, valueCount)},
		{First: 1, Values: make([]float32, valueCount-1)},
	} {
		r.Paste([]Copied{{Recent: c, Day: c}})
		require.Zero(t, r.pair.recent.newest)
	}
	many := make([]Copied, 2*MaxQueues)
	for i := range many {
		many[i].Queue = uint64(i + 1)
	}
	r.Paste(many)
	require.Len(t, r.queues, MaxQueues)
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The history of MaxQueues queues and the counters of all other queues use at most 8 MiB. With few queues, the
// recorder uses less.
func TestMemory(t *testing.T) {
	for name, c := range map[string]struct {
		queues  int
		samples int // the last samples of a day
		limit   int64
	}{
		"idle":           {3, 1, 64 << 10},
		"3 queues":       {3, int(Day / Interval), 256 << 10},
		"100,000 queues": {100_000, 3, 8 << 20},
		"150,000 queues": {150_000, 3, 8 << 20},
	} {
		s := withQueues(c.queues)
		before := heap()
		r := New()
		for i := range c.samples {
			s.change(i%c.queues, 1, 0)
			sample(t, r, s, start.Add(time.Duration(i)*Interval))
		}
		if c.queues > MaxQueues { // fill the rings
			require.Len(t, r.queues, MaxQueues)
			for _, s := range slices.AppendSeq([]*series{r.pair}, maps.Values(r.queues)) {
				for i := range int64(recentChunks * chunkSlots) {
					s.recent.set(1_000_000+i, values{})
				}
				for i := range int64(dayChunks * chunkSlots) {
					s.day.set(1_000_000+i, values{})
				}
			}
		}
		used := heap() - before
		t.Logf("%s: %d bytes", name, used)
		require.LessOrEqual(t, used, c.limit, name)
		runtime.KeepAlive(r)
		runtime.KeepAlive(s)
	}
}

// The number of allocations in a sample does not depend on the number of queues that are not recorded.
func TestSampleAllocations(t *testing.T) {
	r, s := New(), withQueues(100_000)
	at := start
	next := func() {
		at = at.Add(Interval)
		sample(t, r, s, at)
	}
	next()
	require.Less(t, testing.AllocsPerRun(3, next), 500.0)
}

func BenchmarkSample(b *testing.B) {
	r, s := New(), withQueues(100_000)
	at := start
	for b.Loop() {
		at = at.Add(Interval)
		if err := r.Sample(b.Context(), s, at, true); err != nil {
			b.Fatal(err)
		}
	}
}
