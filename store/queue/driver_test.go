// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// driver applies transactions in sequence.
type driver struct {
	t   testing.TB
	s   *State
	lsn uint64
}

func newDriver(t testing.TB) *driver { return &driver{t: t, s: New()} }

func (d *driver) apply(p *txn.Producer, fill func(b *txn.Builder)) txn.Result {
	d.t.Helper()
	var b txn.Builder
	b.Begin(nil, 0, p)
	fill(&b)
	payload, err := b.Finish()
	require.NoError(d.t, err)
	d.lsn++
	return d.s.Apply(d.lsn, payload)
}

// do applies a transaction that must be accepted.
func (d *driver) do(fill func(b *txn.Builder)) txn.Result {
	d.t.Helper()
	r := d.apply(nil, fill)
	require.NoError(d.t, r.Err())
	return r
}

func (d *driver) queue(name string, c txn.Config, subs ...string) *Queue {
	d.t.Helper()
	r := d.do(func(b *txn.Builder) { b.CreateQueue(name, c, subs...) })
	return d.s.Queue(r.Ops[0].ID)
}

func publish(b *txn.Builder, q uint64, n, bytes int) {
	b.BeginPublish(q)
	for range n {
		b.Message(0, nil, make([]byte, bytes))
	}
	b.EndPublish()
}

func (d *driver) publish(q *Queue, n int) {
	d.t.Helper()
	for ; n > 0; n -= txn.MaxPublishMessages {
		d.do(func(b *txn.Builder) { publish(b, q.id, min(n, txn.MaxPublishMessages), 1) })
	}
}

func (d *driver) ack(q *Queue, sub uint32, first, last uint64) uint64 {
	d.t.Helper()
	return d.do(func(b *txn.Builder) { b.Ack(q.id, sub, txn.Range{First: first, Last: last}) }).Ops[0].Changed
}

func (s *State) AccessVersion() uint64 { return s.access.version }

func (s *State) ProducerCount() int { return len(s.producers.byID) }

// TailFirst returns the sequence of the first message in memory, or the queue's NextSequence.
func (q *Queue) TailFirst() uint64 {
	if q.tail.n == 0 {
		return q.nextSeq
	}
	return q.tail.first
}
