// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"bytes"
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// fakePages implements the handling of batches in package store without a disk: a tree, and extents.
type fakePages struct {
	kv      map[string][]byte
	extents map[uint64][]fakeExtent // by queue, in order
}

type fakeExtent struct {
	first, span uint64
	records     map[uint64][]byte
}

func newFakePages() *fakePages {
	return &fakePages{kv: map[string][]byte{}, extents: map[uint64][]fakeExtent{}}
}

func (p *fakePages) clone() *fakePages {
	c := &fakePages{kv: maps.Clone(p.kv), extents: map[uint64][]fakeExtent{}}
	for q, extents := range p.extents {
		c.extents[q] = slices.Clone(extents)
	}
	return c
}

// write applies a batch. Each extent has at most perExtent messages.
func (p *fakePages) write(t *testing.T, b *Batch, perExtent int) {
	t.Helper()
	for _, key := range b.Deletes {
		delete(p.kv, string(key))
	}
	for i, kv := range b.Puts {
		require.True(t, i == 0 || bytes.Compare(b.Puts[i-1].Key, kv.Key) < 0, "puts are in order")
		p.kv[string(kv.Key)] = bytes.Clone(kv.Value)
	}
	var last []byte
	for key := range b.Schedule.Puts {
		require.Less(t, string(last), string(key), "puts are in order")
		last = bytes.Clone(key)
		p.kv[string(key)] = nil
	}
	for key := range b.Schedule.Deletes {
		delete(p.kv, string(key))
	}
	last = last[:0]
	for i := range b.IDs {
		for key, value := range b.IDs[i].Puts {
			require.Less(t, string(last), string(key), "puts are in order")
			p.kv[string(key)] = bytes.Clone(value)
			last = append(last[:0], key...)
		}
	}
	for _, r := range b.DeleteRanges {
		p.deleteRange(r)
	}
	for i := range b.Tails {
		p.writeTail(t, &b.Tails[i], perExtent)
	}
	for _, q := range b.DeletedQueues {
		delete(p.extents, q)
		for _, r := range QueueKeys(q) {
			p.deleteRange(r)
		}
	}
	for i := range b.Dead {
		d := &b.Dead[i]
		for first, last := range d.Parts {
			require.True(t, d.First <= first && first <= last && last <= d.Last)
			p.extents[d.Queue] = slices.DeleteFunc(p.extents[d.Queue], func(r fakeExtent) bool {
				return r.first <= last && r.first+r.span > first && d.AllDead(r.first, r.span)
			})
		}
	}
}

func (p *fakePages) deleteRange(r KeyRange) {
	maps.DeleteFunc(p.kv, func(key string, _ []byte) bool { return key >= string(r.From) && key < string(r.To) })
}

func (p *fakePages) get(key []byte) (value []byte, ok bool, err error) {
	value, ok = p.kv[string(key)]
	return value, ok, nil
}

func (p *fakePages) writeTail(t *testing.T, run *TailRun, perExtent int) {
	t.Helper()
	require.LessOrEqual(t, len(run.Records), MaxExtentSpan)
	var r fakeExtent
	for i, rec := range run.Records {
		if rec == nil {
			continue
		}
		seq := run.First + uint64(i)
		if r.records == nil {
			r = fakeExtent{first: seq, records: map[uint64][]byte{}}
		}
		r.records[seq] = rec
		r.span = seq - r.first + 1
		if len(r.records) == perExtent {
			p.extents[run.Queue] = append(p.extents[run.Queue], r)
			r = fakeExtent{}
		}
	}
	if r.records != nil {
		p.extents[run.Queue] = append(p.extents[run.Queue], r)
	}
	extents := p.extents[run.Queue]
	for i, r := range extents {
		require.True(t, i == 0 || extents[i-1].first+extents[i-1].span <= r.first, "extents overlap")
	}
}

func (p *fakePages) read(q, seq uint64) []byte {
	extents := p.extents[q]
	i, ok := slices.BinarySearchFunc(extents, seq, func(r fakeExtent, s uint64) int { return cmp.Compare(r.first, s) })
	if !ok {
		i--
	}
	if i < 0 {
		return nil
	}
	return extents[i].records[seq]
}

func (p *fakePages) load(t *testing.T, lsn uint64) *State {
	t.Helper()
	l := NewLoader()
	for _, key := range slices.Sorted(maps.Keys(p.kv)) {
		require.NoError(t, l.Put([]byte(key), p.kv[key]))
	}
	s, err := l.Finish(lsn)
	require.NoError(t, err)
	s.ReadIDs(p.get)
	return s
}

// same compares the keys and values of two states and reports the first different key.
func same(t testing.TB, want, got map[string][]byte, why string) {
	t.Helper()
	for _, key := range slices.Sorted(maps.Keys(want)) {
		value, ok := got[key]
		if !ok {
			require.Failf(t, why, "key %x is missing", key)
		}
		if !bytes.Equal(want[key], value) {
			require.Failf(t, why, "key %x is\n%x, should be\n%x", key, value, want[key])
		}
	}
	for key := range got {
		if _, ok := want[key]; !ok {
			require.Failf(t, why, "unexpected key %x", key)
		}
	}
}

func allOf(s *State) map[string][]byte {
	m := map[string][]byte{}
	for k, v := range s.All {
		m[string(k)] = bytes.Clone(v)
	}
	return m
}

// replica is one node: a state, its pages, and its own schedule of flushes, checkpoints and restarts.
type replica struct {
	t     *testing.T
	rng   *rand.Rand
	state *State
	pages *fakePages
	log   [][]byte // log[i] is record i+1; nil if it is not a transaction

	batch      *Batch
	everything bool
	want       map[string][]byte // result of All when the batch was collected
	schedule   []txn.Due         // whole schedule at that time
	stable     *fakePages        // the last checkpoint
	stableLSN  uint64
	restarts   int
}

func newReplica(t *testing.T, seed uint64) *replica {
	r := &replica{
		t: t, rng: rand.New(rand.NewPCG(seed, 77)), state: New(),
		pages: newFakePages(), stable: newFakePages(),
	}
	r.state.ReadIDs(r.pages.get)
	return r
}

// step makes a random flush, checkpoint or restart, or none.
func (r *replica) step() {
	switch k := r.rng.IntN(100); {
	case r.batch != nil && k < 30:
		r.finish()
	case r.batch == nil && k < 15:
		r.batch, r.everything = r.state.Collect(r.rng.Int64N(100_000)+1, false), false
	case r.batch == nil && k < 22:
		r.want, r.schedule = allOf(r.state), r.scheduled()
		r.batch, r.everything = r.state.Collect(0, true), true
	case k < 24:
		r.restart()
	}
}

func (r *replica) finish() {
	b := r.batch
	r.batch = nil
	r.pages.write(r.t, b, 1+r.rng.IntN(100))
	if r.everything {
		r.checkCheckpoint(b)
		r.stable, r.stableLSN = r.pages.clone(), b.LSN
	}
	for i := range b.Tails {
		r.state.Flushed(b.Tails[i].Queue, b.Tails[i].Last())
	}
	if r.everything && r.rng.IntN(2) == 0 { // otherwise the changes stay in memory until the next one
		r.state.ScheduleWritten()
	}
	require.Empty(r.t, r.state.Check())
}

// checkCheckpoint loads the pages after a batch. They must contain the state at the batch's LSN, all messages that
// were live then, and no unneeded extent.
func (r *replica) checkCheckpoint(b *Batch) {
	stored := storedSchedule(r.t, r.pages.kv)
	require.True(r.t, slices.Equal(r.schedule, stored), "the stored schedule is not the collected one")
	kv := maps.Clone(r.pages.kv)
	maps.DeleteFunc(kv, func(key string, _ []byte) bool { return key[0] == keySchedule || key[0] == keyIDs })
	same(r.t, r.want, kv, "the tree is the state when the batch was collected")
	s := r.pages.load(r.t, b.LSN)
	for key, value := range r.pages.kv {
		if key[0] == keyIDs {
			require.NoError(r.t, s.CheckID([]byte(key), value))
		}
	}
	same(r.t, r.want, allOf(s), "the loaded state is the state when the batch was collected")
	for q := range s.Queues {
		for seq := q.NextAlive(1); seq < q.NextSequence(); seq = q.NextAlive(seq + 1) {
			if r.pages.read(q.ID(), seq) == nil {
				require.FailNow(r.t, "message is not in pages", "queue %d: message %d", q.ID(), seq)
			}
		}
	}
	for id, extents := range r.pages.extents {
		q := s.Queue(id)
		if q == nil {
			require.Empty(r.t, extents, "pages of the deleted queue %d", id)
			continue
		}
		for _, e := range extents {
			require.False(r.t, q.AllDead(e.first, e.span), "queue %d: extent %d+%d is dead, but not removed", id,
				e.first, e.span)
		}
	}
}

// restart reloads the last checkpoint and replays the log.
func (r *replica) restart() {
	r.batch = nil
	r.restarts++
	r.pages = r.stable.clone()
	before := allOf(r.state)
	r.state = r.pages.load(r.t, r.stableLSN)
	for lsn := r.stableLSN + 1; lsn <= uint64(len(r.log)); lsn++ {
		if payload := r.log[lsn-1]; payload != nil {
			r.state.Apply(lsn, payload)
		} else {
			r.state.Advance(lsn)
		}
	}
	same(r.t, before, allOf(r.state), "a restart changes nothing")
}

// read returns a message from memory or pages.
func (r *replica) read(q *Queue, seq uint64) []byte {
	if rec, ok := q.TailRecord(seq); ok {
		return rec
	}
	return r.pages.read(q.ID(), seq)
}
