// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// repairInterval is the minimum time between repair attempts for a message.
	repairInterval = 5 * time.Second
	// lostInterval replaces repairInterval for a lost message (CorruptMessage.Lost).
	lostInterval = time.Minute
	// repairWait limits the duration of one repair.
	repairWait = 3 * time.Second
)

// Source provides valid copies of messages from the other node of the pair.
type Source interface {
	// FetchMessages returns the other node's copies of a queue's messages from sequence first to last. applied is the
	// position of the last record that this node has applied. The source must verify that both nodes have the same
	// history up to the lower one of their applied positions.
	FetchMessages(ctx context.Context, queue, first, last uint64, applied lsn.Position) (FoundMessages, error)
}

// Message is a stored message.
type Message struct {
	Sequence uint64
	Record   []byte // for txn.DecodeMessage; must not be modified
}

// FoundMessages contains a node's copies of a range of messages, sorted by sequence.
type FoundMessages struct {
	Messages []Message
	// Damaged contains the sequences of messages that are needed but cannot be read on that node either.
	Damaged []uint64
	// Last is the last sequence covered. It is lower than requested if the result is partial.
	Last uint64
}

// SetSource sets the source of valid copies. Without a source, a corrupt page that a checkpoint needs is fatal.
func (r *Repairer) SetSource(m Source) { r.source.Store(&m) }

// HasSource reports whether SetSource was called.
func (r *Repairer) HasSource() bool { return r.source.Load() != nil }

// StandAlone records that no other node has a copy.
func (r *Repairer) StandAlone() { r.alone.Store(true) }

// errNoCopy means that the other node is unavailable or does not exist.
var errNoCopy = errors.New("copy of the other node is not available")

// Repair repairs the extent that contains the first message of bad. It waits at most 3 s, and returns nil if that
// message is readable again or no longer needed.
func (r *Repairer) Repair(ctx context.Context, bad *CorruptError) error {
	return r.repair(ctx, bad, false)
}

// repair implements Repair. It ignores repairInterval if immediate is set.
func (r *Repairer) repair(ctx context.Context, bad *CorruptError, immediate bool) error {
	r.Note(bad)
	ctx, cancel := context.WithTimeout(ctx, repairWait)
	defer cancel()
	select {
	case r.busy <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("repair: %w", ctx.Err())
	}
	defer func() { <-r.busy }()
	return r.repairOne(ctx, bad.Queue, bad.Sequences[0], immediate)
}

// RepairAll tries to repair all known corruption. It returns the number of messages that are still corrupt.
func (r *Repairer) RepairAll(ctx context.Context) (left int, err error) {
	if err := r.resolveSuspects(); err != nil {
		return 0, err
	}
	all := r.Damaged(maxDamaged)
	for i, m := range all {
		bad := &CorruptError{Queue: m.Queue, Sequences: []uint64{m.Sequence}, Err: errors.New(m.Reason)}
		if !r.has(m.Queue, m.Sequence) {
			continue // repaired together with an earlier message
		}
		err := r.repair(ctx, bad, true)
		if err != nil {
			left++
		}
		if ctx.Err() != nil {
			return left, fmt.Errorf("repair: %w", ctx.Err())
		}
		if errors.Is(err, errNoCopy) { // the other node is unavailable: skip the remaining messages
			left += len(all) - i - 1
			break
		}
	}
	return left, r.dropDamagedLog(ctx)
}

type extentState struct {
	entry index.Entry // its Extent is zero if no extent contains the message
	alive []uint64    // needed sequences
	have  []Message   // readable messages among them
	why   error       // why the other needed messages are unreadable; nil if all are readable
}

func (r *Repairer) readExtent(queueID, seq uint64) (extentState, error) {
	pages := r.pages.Acquire()
	defer r.pages.Release()
	if err := r.engine.Usable(); err != nil {
		return extentState{}, err
	}
	guard := pages.File.ReadGuard()
	defer guard.Release()
	k, v, ok, err := pages.Index.View().SeekFloor(index.AppendKey(nil, queueID, seq))
	if err != nil {
		return extentState{}, r.IndexError(err)
	}
	e, found, err := index.EntryOf(k, v, ok, queueID)
	if err != nil {
		return extentState{}, err
	}
	if !found || e.Last() < seq {
		e = index.Entry{Queue: queueID, First: seq, Span: 1}
	}
	st := extentState{entry: e}
	r.engine.View(func(state *queue.State) {
		q := state.Queue(queueID)
		st.alive = alive(q, e.First, e.Last())
		if e.Extent.IsZero() {
			st.alive = slices.DeleteFunc(st.alive, func(seq uint64) bool {
				_, inMemory := q.TailRecord(seq)
				return inMemory
			})
		}
	})
	if e.Extent.IsZero() {
		st.why = fmt.Errorf("%w: not found in any page", index.ErrDataLoss)
		return st, nil
	}
	_, payload, err := pages.File.ReadExtent(e.Extent, nil)
	if err != nil {
		if Unreadable(err) {
			st.why = err
			return st, nil
		}
		return st, fmt.Errorf("read an extent: %w", err)
	}
	st.have, st.why = wantedOf(payload, st.alive)
	return st, nil
}

// wantedOf returns the needed messages of an extent. It returns an error if one is missing.
func wantedOf(payload []byte, want []uint64) (have []Message, err error) {
	r, err := index.NewExtentReader(payload)
	if err != nil {
		return nil, err
	}
	for {
		seq, record, ok, err := r.Next()
		if err != nil {
			return have, err
		}
		if !ok {
			break
		}
		if _, wanted := slices.BinarySearch(want, seq); wanted {
			have = append(have, Message{Sequence: seq, Record: record})
		}
	}
	if len(have) < len(want) {
		return have, fmt.Errorf("%w: page contains %d of %d messages", index.ErrDataLoss, len(have), len(want))
	}
	return have, nil
}

// repairOne repairs the extent that contains a needed message. It returns nil if the message is readable again, or no
// longer needed. The caller must have acquired busy.
func (r *Repairer) repairOne(ctx context.Context, queueID, seq uint64, immediate bool) error {
	st, err := r.readExtent(queueID, seq)
	if err != nil {
		return err
	}
	if st.why == nil || len(st.alive) == 0 {
		r.forget(queueID, append(st.alive, seq))
		return nil
	}
	missing := st.missing()
	if err := r.mayRepair(queueID, missing, st.why, immediate); err != nil {
		return err
	}
	source := r.source.Load()
	if source == nil {
		err := fmt.Errorf("%w; %w: no other node", st.why, errNoCopy)
		if r.alone.Load() {
			r.recordAnswer(&CorruptError{Queue: queueID, Sequences: missing, Err: err}, true)
		}
		return err
	}
	found, err := r.fetchAll(ctx, *source, queueID, missing)
	if err != nil {
		err = fmt.Errorf("%w; %w: %w", st.why, errNoCopy, err)
		r.Note(&CorruptError{Queue: queueID, Sequences: missing, Err: err})
		return err
	}
	gained, err := st.merge(&found, missing)
	if err != nil {
		r.Note(&CorruptError{Queue: queueID, Sequences: missing, Err: err})
		return err
	}
	if gained > 0 {
		if err := r.pages.ReplaceExtent(&st.entry, func() queue.TailRun { return r.tailOf(&st) }); err != nil {
			return fmt.Errorf("repair queue %d, sequences %d to %d: %w", queueID, st.entry.First, st.entry.Last(), err)
		}
		r.count(func(d *Status) { d.RepairedPages++; d.RepairedMessages += uint64(gained) })
		r.events(events.PageRepaired{
			Queue: queueID, First: st.entry.First, Last: st.entry.Last(), Messages: gained, Was: st.why,
		})
		restored := make([]uint64, 0, len(st.have))
		for i := range st.have {
			restored = append(restored, st.have[i].Sequence)
		}
		r.forget(queueID, restored)
	}
	return r.stillMissing(queueID, seq, &st, &found)
}

func (r *Repairer) tailOf(st *extentState) queue.TailRun {
	tail := queue.TailRun{Queue: st.entry.Queue, First: st.have[0].Sequence}
	last := st.have[len(st.have)-1].Sequence
	tail.Records = make([][]byte, last-tail.First+1)
	r.engine.View(func(state *queue.State) {
		q := state.Queue(st.entry.Queue)
		for i := range st.have {
			// Omit messages that were consumed in the meantime. The last batch may already have removed them from the index,
			// and no later batch would remove them again.
			if m := &st.have[i]; q != nil && !q.Dead(m.Sequence) {
				tail.Records[m.Sequence-tail.First] = m.Record
			}
		}
	})
	return tail
}

// stillMissing records the messages that a repair could not restore. It returns nil if the requested message is not
// among them.
func (r *Repairer) stillMissing(queueID, seq uint64, st *extentState, found *FoundMessages) error {
	var lost, later []uint64
	for _, q := range st.missing() {
		if _, there := slices.BinarySearch(found.Damaged, q); there {
			lost = append(lost, q)
		} else {
			later = append(later, q)
		}
	}
	var err error
	if len(lost) > 0 {
		why := fmt.Errorf("%w; it is also corrupt on the other node", st.why)
		r.recordAnswer(&CorruptError{Queue: queueID, Sequences: lost, Err: why}, true)
		if slices.Contains(lost, seq) {
			err = why
		}
	}
	if len(later) > 0 {
		// The other node has already applied the acknowledgement, or has not yet applied the publish.
		why := fmt.Errorf("%w; the other node does not have it at present", st.why)
		r.recordAnswer(&CorruptError{Queue: queueID, Sequences: later, Err: why}, false)
		if slices.Contains(later, seq) {
			err = why
		}
	}
	return err
}

func (st *extentState) missing() []uint64 {
	var out []uint64
	for _, q := range st.alive {
		if !slices.ContainsFunc(st.have, func(d Message) bool { return d.Sequence == q }) {
			out = append(out, q)
		}
	}
	return out
}

func (r *Repairer) fetchAll(
	ctx context.Context, source Source, queueID uint64, missing []uint64,
) (FoundMessages, error) {
	first, last := missing[0], missing[len(missing)-1]
	all := FoundMessages{Last: last}
	for first <= last {
		got, err := source.FetchMessages(ctx, queueID, first, last, r.engine.Applied())
		if err != nil {
			return all, err
		}
		all.Messages = append(all.Messages, got.Messages...)
		all.Damaged = append(all.Damaged, got.Damaged...)
		if got.Last < first {
			return all, fmt.Errorf("%w: response without progress", index.ErrDataLoss)
		}
		first = got.Last + 1
	}
	slices.Sort(all.Damaged)
	return all, nil
}

// merge adds the other node's copies to st.have, and returns the number of messages added. It returns an error if a
// copy cannot be decoded, or if the extent is then complete and its size differs from the index entry.
func (st *extentState) merge(found *FoundMessages, missing []uint64) (gained int, err error) {
	for i := range found.Messages {
		m := &found.Messages[i]
		if _, wanted := slices.BinarySearch(missing, m.Sequence); !wanted {
			continue
		}
		if _, err := txn.DecodeMessage(m.Record); err != nil {
			return 0, fmt.Errorf("%w; invalid message from the other node for sequence %d: %w", st.why,
				m.Sequence, err)
		}
		st.have = append(st.have, Message{Sequence: m.Sequence, Record: bytes.Clone(m.Record)})
		gained++
	}
	slices.SortFunc(st.have, func(a, b Message) int { return cmp.Compare(a.Sequence, b.Sequence) })
	st.have = slices.CompactFunc(st.have, func(a, b Message) bool { return a.Sequence == b.Sequence })
	if e := &st.entry; !e.Extent.IsZero() && uint64(len(st.have)) == e.Count {
		size := 0
		for i := range st.have {
			size += txn.UvarintBytes(st.have[i].Sequence-e.First) + len(st.have[i].Record)
		}
		if uint64(size) != e.Bytes {
			return 0, fmt.Errorf("%w; the other node's messages differ: %d bytes instead of %d; "+
				"run `lockstep verify`",
				st.why, size, e.Bytes)
		}
	}
	return gained, nil
}

// resolveSuspects determines the use of corrupt pages. It records corrupt messages for repair, and makes the next
// checkpoint rewrite corrupt parts of the bitmap of used pages.
func (r *Repairer) resolveSuspects() error {
	suspects := r.suspectPages()
	if len(suspects) == 0 {
		return nil
	}
	pages := r.pages.Acquire()
	defer r.pages.Release()
	if err := r.engine.Usable(); err != nil {
		return err
	}
	for no := range suspects {
		pages.File.RelocateOwn(no)
	}
	guard := pages.File.ReadGuard()
	defer guard.Release()
	it := pages.Index.View().Scan([]byte{index.Letter}, []byte{index.Letter + 1})
	for it.Next() {
		e, err := index.Decode(it.Key(), it.Value())
		if err != nil {
			return err
		}
		if why := suspects[e.Extent.First]; why != nil {
			if b := r.wantedIn(&e, why); b != nil {
				r.Note(b)
			}
		}
	}
	if err := it.Err(); err != nil {
		return r.IndexError(err)
	}
	r.suspectsResolved(suspects)
	return nil
}
