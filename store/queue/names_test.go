// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

func TestNameList(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var l nameList
	have := map[string]*Queue{}
	for range 20_000 {
		name := fmt.Sprintf("q%d", rng.IntN(5000))
		if q := have[name]; q != nil {
			l.remove(q)
			delete(have, name)
			continue
		}
		have[name] = &Queue{name: name}
		l.insert(have[name])
	}
	var want, got []string
	for name := range have {
		want = append(want, name)
	}
	slices.Sort(want)
	l.from("", func(q *Queue) bool { got = append(got, q.name); return true })
	require.Equal(t, want, got)
	for _, name := range []string{"q0", "q2", "q25", "q9999", "a", "z"} {
		got = got[:0]
		l.from(name, func(q *Queue) bool { got = append(got, q.name); return len(got) < 600 })
		at, _ := slices.BinarySearch(want, name)
		require.Equal(t, want[at:min(at+600, len(want))], append([]string{}, got...))
	}
	for _, p := range l.parts {
		require.NotEmpty(t, p)
		require.LessOrEqual(t, len(p), maxPart)
	}
}

func TestList(t *testing.T) {
	d := newDriver(t)
	for _, name := range []string{"b/2", "a", "b/1", "c", "b", "b/3"} {
		d.queue(name, txn.Config{})
	}
	list := func(prefix, after string, limit int) string {
		var names []string
		for _, q := range d.s.List(nil, prefix, after, limit) {
			names = append(names, q.Name())
		}
		return strings.Join(names, " ")
	}
	require.Equal(t, "a b b/1 b/2 b/3 c", list("", "", 10))
	require.Equal(t, "a b", list("", "", 2))
	require.Equal(t, "b/1 b/2", list("", "b", 2))
	require.Equal(t, "b/1 b/2 b/3", list("b/", "", 10))
	require.Equal(t, "b/1 b/2 b/3", list("b/", "a", 10))
	require.Equal(t, "b/2 b/3", list("b/", "b/1", 10))
	require.Equal(t, "b/2 b/3", list("b/", "b/11", 10))
	require.Empty(t, list("b/", "c", 10))
	require.Empty(t, list("x", "", 10))
	require.Empty(t, list("", "", 0))
}

func BenchmarkCreateQueues(b *testing.B) {
	d := newDriver(b)
	for i := range b.N {
		d.queue(fmt.Sprintf("queue-%d", i*7919%1_000_003), txn.Config{}, "default")
	}
}

func BenchmarkApplyPublish(b *testing.B) {
	d := newDriver(b)
	q := d.queue("q", txn.Config{}, "default")
	var tb txn.Builder
	tb.Begin(nil, 0, nil)
	publish(&tb, q.id, 100, 100)
	batch, err := tb.Finish()
	require.NoError(b, err)
	for b.Loop() {
		d.lsn++
		r := d.s.Apply(d.lsn, batch)
		first := r.Ops[0].FirstSequence
		tb.Begin(nil, 0, nil)
		tb.Ack(q.id, 1, txn.Range{First: first, Last: first + 99})
		ack, err := tb.Finish()
		require.NoError(b, err)
		d.lsn++
		d.s.Apply(d.lsn, ack)
	}
	b.ReportMetric(float64(b.N)*100/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkCheckpoint collects and loads a state of 100,000 changed queues.
func BenchmarkCheckpoint(b *testing.B) {
	d := newDriver(b)
	for i := range 100_000 {
		q := d.queue(fmt.Sprintf("queue-%d", i), txn.Config{}, "default")
		d.publish(q, 10)
	}
	b.Run("collect", func(b *testing.B) {
		for b.Loop() {
			batch := d.s.Collect(0, true)
			b.StopTimer()
			for q := range d.s.Queues {
				d.s.mark(q)
				q.subs[0].dirty = true
				q.sizes.slots[0].dirty = true
			}
			require.Len(b, batch.Tails, 100_000)
			b.StartTimer()
		}
	})
	b.Run("load", func(b *testing.B) {
		for b.Loop() {
			l := NewLoader()
			for k, v := range d.s.All {
				require.NoError(b, l.Put(k, v))
			}
			_, err := l.Finish(d.lsn)
			require.NoError(b, err)
		}
	})
}
