// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

func origin(id string, epoch uint32, sequence uint64) *txn.Producer {
	return &txn.Producer{ID: []byte(id), Epoch: epoch, Sequence: sequence}
}

func one(b *txn.Builder) { publish(b, 1, 1, 1) }

// reload saves and loads the state.
func (d *driver) reload() {
	d.t.Helper()
	l := NewLoader()
	for k, v := range d.s.All {
		require.NoError(d.t, l.Put(k, v))
	}
	s, err := l.Finish(d.lsn)
	require.NoError(d.t, err)
	s.setLimits(d.s.limits)
	d.s = s
}

func TestRetryReturnsOriginalResult(t *testing.T) { // INV-10
	d := newDriver(t)
	d.queue("q", txn.Config{MaxMessages: 6}, "a")
	first := d.apply(origin("p", 0, 1), one)
	require.NoError(t, first.Err())
	several := d.apply(origin("p", 0, 2), func(b *txn.Builder) { one(b); publish(b, 1, 3, 1) })
	refused := d.apply(origin("p", 0, 9), func(b *txn.Builder) { publish(b, 1, 5, 1) })
	require.ErrorIs(t, refused.Err(), txn.ErrQueueFull)
	d.do(func(b *txn.Builder) { b.Purge(1, 0) }) // the refused publish would fit now

	for range 2 {
		for sequence, want := range map[uint64]txn.Result{1: first, 2: several, 9: refused} {
			before := d.s.Queue(1).NextSequence()
			want.Duplicate = true
			prior, ok, code := d.s.CachedResult(*origin("p", 0, sequence))
			require.True(t, ok)
			require.Equal(t, txn.OK, code)
			require.Equal(t, want, prior)
			require.Equal(t, want, d.apply(origin("p", 0, sequence), one))
			require.Equal(t, before, d.s.Queue(1).NextSequence(), "a retry adds no messages")
		}
		d.reload()
	}
	_, ok, code := d.s.CachedResult(*origin("p", 0, 3))
	require.False(t, ok)
	require.Equal(t, txn.OK, code)
	r := d.apply(origin("p", 0, 3), one)
	require.NoError(t, r.Err(), "a skipped sequence was never applied")
	require.False(t, r.Duplicate)
}

func TestProducerEpochs(t *testing.T) {
	d := newDriver(t)
	d.queue("q", txn.Config{}, "a")
	require.False(t, d.apply(origin("p", 1, 1), one).Duplicate)
	require.False(t, d.apply(origin("p", 2, 1), one).Duplicate, "a new epoch starts at sequence 1")
	_, _, code := d.s.CachedResult(*origin("p", 1, 5))
	require.Equal(t, txn.ErrFenced, code)
	for _, sequence := range []uint64{1, 2, 3} {
		r := d.apply(origin("p", 1, sequence), one)
		require.ErrorIs(t, r.Err(), txn.ErrFenced)
	}
	d.reload()
	r := d.apply(origin("p", 1, 9), one)
	require.ErrorIs(t, r.Err(), txn.ErrFenced)
	require.True(t, d.apply(origin("p", 2, 1), one).Duplicate)
	require.Equal(t, uint64(3), d.s.Queue(1).NextSequence())
}

func TestProducerWindow(t *testing.T) {
	d := newDriver(t)
	d.queue("q", txn.Config{}, "a")
	const n = 3 * ProducerWindow
	for i := uint64(1); i <= n; i++ {
		require.NoError(t, new(d.apply(origin("p", 0, 2*i), one)).Err())
	}
	d.reload()
	for i := uint64(1); i <= n; i++ {
		r := d.apply(origin("p", 0, 2*i), one)
		if i <= n-ProducerWindow {
			require.ErrorIs(t, r.Err(), txn.ErrTooOld, "sequence %d", 2*i)
			continue
		}
		require.NoError(t, r.Err())
		require.True(t, r.Duplicate)
		require.Equal(t, i, r.Ops[0].FirstSequence)
	}
	r := d.apply(origin("p", 0, 2*(n-ProducerWindow)-1), one)
	require.ErrorIs(t, r.Err(), txn.ErrTooOld, "the sequence is below the floor, although it was never sent")
	require.Equal(t, uint64(n+1), d.s.Queue(1).NextSequence())
	require.Empty(t, d.s.Check())
}

// smallLimits returns limits that a test can reach.
func smallLimits() limits {
	l := defaultLimits()
	l.producers, l.producerOps, l.totalOps, l.producerWindow, l.evictionThreshold = 4, 6, 12, 3, 3
	return l
}

func TestLargeTransactionsShrinkWindow(t *testing.T) {
	d := newDriver(t)
	d.s.setLimits(smallLimits())
	d.queue("q", txn.Config{}, "a")
	two := func(b *txn.Builder) {
		for range 4 {
			one(b)
		}
	}
	d.apply(origin("p", 0, 1), two)
	d.apply(origin("p", 0, 2), two)
	require.ErrorIs(t, new(d.apply(origin("p", 0, 1), two)).Err(), txn.ErrTooOld)
	r := d.apply(origin("p", 0, 2), two)
	require.True(t, r.Duplicate)
	require.Len(t, r.Ops, 4)
	seven := func(b *txn.Builder) {
		for range 7 {
			one(b)
		}
	}
	d.apply(origin("p", 0, 3), seven)
	require.True(t, d.apply(origin("p", 0, 3), seven).Duplicate, "the newest result is always kept")
	require.Empty(t, d.s.Check())
}

func TestProducerEviction(t *testing.T) {
	d := newDriver(t)
	d.s.setLimits(smallLimits())
	d.queue("q", txn.Config{}, "a")
	use := func(name string, sequence uint64) txn.Result {
		return d.apply(origin(name, 0, sequence), func(b *txn.Builder) {
			for range 4 {
				one(b)
			}
		})
	}
	for i := range 4 {
		use(fmt.Sprintf("p%d", i), 5)
	}
	// 16 results exceed the limit of 12: the oldest producer has lost its results, but not its sequence.
	require.Equal(t, 4, d.s.ProducerCount())
	require.Nil(t, d.s.producers.byID["p0"].results)
	require.True(t, new(use("p1", 5)).Duplicate)
	d.reload()
	require.Empty(t, d.s.Check())
	require.ErrorIs(t, new(use("p0", 5)).Err(), txn.ErrTooOld)
	require.NoError(t, new(use("p0", 6)).Err())

	// With one producer above the limit, the least recently used one is evicted. p0 and p1 were used after p2 and p3.
	use("p4", 1)
	require.Equal(t, 4, d.s.ProducerCount())
	require.Nil(t, d.s.producers.byID["p2"])
	d.reload()
	r := use("p2", 5)
	require.ErrorIs(t, r.Err(), txn.ErrProducerForgotten, "an unknown outcome is an error")
	_, _, code := d.s.CachedResult(*origin("p2", 0, 5))
	require.Equal(t, txn.ErrProducerForgotten, code)
	require.NoError(t, new(use("new", 1)).Err(), "a new producer is accepted")
	require.Empty(t, d.s.Check())
}

// A transaction of an unknown producer with a low sequence is accepted, unless it is marked as a retry.
func TestRetryOfForgottenProducer(t *testing.T) { // INV-10
	d := newDriver(t)
	d.s.setLimits(smallLimits())
	d.queue("q", txn.Config{}, "a")
	_, _, code := d.s.CachedResultOfRetry(*origin("early", 0, 1))
	require.Equal(t, txn.OK, code, "no producer was evicted: the first attempt did not arrive")
	for i := range 5 {
		require.NoError(t, new(d.apply(origin(fmt.Sprintf("p%d", i), 0, 1), one)).Err())
	}
	_, ok, code := d.s.CachedResult(*origin("p0", 0, 1))
	require.False(t, ok)
	require.Equal(t, txn.OK, code, "the producer may be new")
	_, _, code = d.s.CachedResultOfRetry(*origin("p0", 0, 1))
	require.Equal(t, txn.ErrProducerForgotten, code, "a retry was accepted as the request of a new producer")
	prior, ok, _ := d.s.CachedResultOfRetry(*origin("p4", 0, 1))
	require.True(t, ok)
	require.True(t, prior.Duplicate)
	_, ok, code = d.s.CachedResultOfRetry(*origin("p4", 0, 2))
	require.False(t, ok)
	require.Equal(t, txn.OK, code, "a known producer has lost no results")
}

// Evicted producers are also removed from the tree when a batch is written. The model test has too few producers for
// an eviction.
func TestEvictedProducersAreRemovedFromTree(t *testing.T) {
	d := newDriver(t)
	d.s.setLimits(smallLimits())
	d.queue("q", txn.Config{}, "a")
	pages := newFakePages()
	for i := range 200 {
		d.apply(origin(fmt.Sprintf("p%d", i*i%11), 0, uint64(i+1)), one)
		if i%7 == 0 {
			want := allOf(d.s)
			b := d.s.Collect(0, true)
			pages.write(t, b, 10)
			for j := range b.Tails {
				d.s.Flushed(b.Tails[j].Queue, b.Tails[j].Last())
			}
			same(t, want, pages.kv, "the tree holds the state")
			require.Empty(t, d.s.Check())
		}
	}
}
