// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// This file models the deduplication by message ID. The model keeps all IDs of a queue, and evaluates the window
// when an ID is published again.

type modelIDs struct {
	byID       map[string]modelID
	added      uint64
	duplicates uint64
}

type modelID struct {
	sequence, number uint64
	at               int64
}

// someID draws a message ID, which is mostly empty.
func (m *model) someID() string {
	if m.rng.IntN(3) > 0 {
		return ""
	}
	return fmt.Sprint("id ", m.rng.IntN(60))
}

// duplicate returns the sequence of the earlier message with the same ID, or adds the ID.
func (m *model) duplicate(q *modelQueue, rec []byte) (sequence uint64, found bool) {
	id := string(txn.RecordAttribute(rec, txn.AttributeMessageID))
	if id == "" || q.config.DedupWindow == 0 {
		return 0, false
	}
	d := &q.ids
	e, found := d.byID[id]
	if found && q.inWindow(e, m.now) {
		d.duplicates++
		return e.sequence, true
	}
	if d.byID == nil {
		d.byID = map[string]modelID{}
	}
	d.byID[id] = modelID{sequence: q.next, number: d.added, at: m.now}
	d.added++
	return 0, false
}

func (q *modelQueue) inWindow(e modelID, now int64) bool {
	return now-e.at < int64(q.config.DedupWindow) &&
		(q.config.DedupMax == 0 || q.ids.added-e.number <= q.config.DedupMax)
}

func (q *modelQueue) endWindow(now int64) {
	maps.DeleteFunc(q.ids.byID, func(_ string, e modelID) bool { return !q.inWindow(e, now) })
}

func (q *modelQueue) removeIDs() {
	if q.config.DedupWindow == 0 {
		q.ids = modelIDs{}
	}
}

// publishAll publishes all messages that are not duplicates.
func (m *model) publishAll(q *modelQueue, records [][]byte) (r txn.OpResult, duplicates txn.Duplicates) {
	r.FirstSequence = q.next
	if q.config.DedupWindow == 0 {
		q.makeRoom(len(records))
	}
	for i, rec := range records {
		if sequence, ok := m.duplicate(q, rec); ok {
			duplicates = append(duplicates, txn.Duplicate{Index: uint32(i), Sequence: sequence})
			continue
		}
		if q.config.DedupWindow != 0 {
			q.makeRoom(1)
		}
		m.add(q, rec)
		r.Changed++
	}
	if len(duplicates) > 0 {
		r.Duplicates = &duplicates
	}
	if r.Changed == 0 {
		r.FirstSequence = duplicates[0].Sequence
	}
	return r, duplicates
}

func (q *modelQueue) checkIDs(t *testing.T, have *Queue) {
	t.Helper()
	_, duplicates := have.MessageIDs()
	require.Equal(t, q.ids.duplicates, duplicates)
}

// messageIDs returns all entries of a replica, from its pages and from memory.
func (r *replica) messageIDs() map[storedID]idEntry {
	all := map[storedID]idEntry{}
	for q := range r.state.Queues {
		if q.ids == nil {
			continue
		}
		for _, g := range q.ids.generations {
			if g.stored {
				from := idKeys(q.id, g.first, g.first+1)
				for key, value := range r.pages.kv {
					if key >= string(from.From) && key < string(from.To) {
						v := cursor{b: value}
						all[storedID{q.id, g.first, idHash([]byte(key[17:]))}] = v.idEntry(g)
						require.NoError(r.t, v.err)
					}
				}
			}
			for h, e := range g.written {
				all[storedID{q.id, g.first, h}] = e
			}
			for h, e := range g.now {
				all[storedID{q.id, g.first, h}] = e
			}
		}
	}
	return all
}

// dueIDs returns the entries of the schedule that remove message IDs.
func (r *replica) dueIDs() []txn.Due {
	return slices.DeleteFunc(r.scheduled(), func(e txn.Due) bool { return e.Kind != txn.DueIDs })
}

// dedupDriver applies transactions at chosen times, with checkpoints.
type dedupDriver struct {
	*replica

	now int64
	lsn uint64
}

func newDedupDriver(t *testing.T) *dedupDriver { return &dedupDriver{replica: newReplica(t, 1)} }

func (d *dedupDriver) do(fill func(b *txn.Builder)) txn.Result {
	d.t.Helper()
	var b txn.Builder
	b.Begin(nil, d.now, nil)
	fill(&b)
	payload, err := b.Finish()
	require.NoError(d.t, err)
	d.lsn++
	d.log = append(d.log, payload)
	r := d.state.Apply(d.lsn, payload)
	require.NoError(d.t, d.state.ReadError())
	require.NoError(d.t, r.Err())
	require.Empty(d.t, d.state.Check())
	return r
}

func (d *dedupDriver) queue(c txn.Config) *Queue {
	d.t.Helper()
	id := d.do(func(b *txn.Builder) { b.CreateQueue(fmt.Sprint("q", d.lsn), c, "s") }).Ops[0].ID
	return d.state.Queue(id)
}

func publishIDs(b *txn.Builder, queue uint64, ids ...string) {
	b.BeginPublish(queue)
	for _, id := range ids {
		b.MessageWith(0, &txn.Attributes{MessageID: id}, nil, []byte("body"))
	}
	b.EndPublish()
}

func (d *dedupDriver) publish(queue uint64, ids ...string) txn.OpResult {
	d.t.Helper()
	return d.do(func(b *txn.Builder) { publishIDs(b, queue, ids...) }).Ops[0]
}

func (d *dedupDriver) checkpoint() {
	d.t.Helper()
	d.want, d.schedule = allOf(d.state), d.scheduled()
	d.batch, d.everything = d.state.Collect(0, true), true
	d.finish()
	d.state.ScheduleWritten()
}
