// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
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
	// repairAgain is how long a message whose repair failed is left alone: a reader that wants it meanwhile is told at
	// once that it is damaged.
	repairAgain = 5 * time.Second
	// lostAgain is the same for a message that is damaged on the other node as well.
	lostAgain = time.Minute
	// repairWait bounds how long a reader waits for the other node.
	repairWait = 3 * time.Second
	// copyBytes bounds what CopyMessages returns, but for a single larger message.
	copyBytes = 8 << 20
)

// MessageSource is where good copies of messages are: the other node of the pair.
type MessageSource interface {
	// FetchMessages returns what the other node has of a queue's messages from sequence first to last. applied is the
	// last record that this node has applied: the source must make sure that both nodes have the same history up to the
	// lower of that and its own, since a sequence names the same message only then.
	FetchMessages(ctx context.Context, queue, first, last uint64, applied lsn.Position) (FoundMessages, error)
}

// FoundMessages is what a node has of a range of messages.
type FoundMessages struct {
	// Messages that it has, by sequence.
	Messages []Delivery
	// Damaged are wanted there, and cannot be read there either.
	Damaged []uint64
	// Last sequence that was looked at, if that is less than what was asked for; otherwise what was asked for.
	Last uint64
}

// SetMessageSource says whom to ask for good copies of damaged messages. Until it is called there is no source, and a
// damaged page that a checkpoint needs is fatal.
func (s *Store) SetMessageSource(m MessageSource) { s.damage.source.Store(&m) }

// StandAlone says that there is no other node that could have a good copy: what is damaged is lost.
func (s *Store) StandAlone() { s.damage.alone.Store(true) }

// CopyMessages returns what this node has of a queue's messages from sequence first to last, for the other node to
// repair its own with. It returns less at once when they are large (FoundMessages.Last says up to where). What is
// damaged here is part of the answer.
func (s *Store) CopyMessages(ctx context.Context, queueID, first, last uint64) (FoundMessages, error) {
	found := FoundMessages{Last: last}
	size := 0
	for from := first; from <= last; {
		if size >= copyBytes {
			found.Last = from - 1
			break
		}
		n := int(min(last-from+1, queue.MaxRunSpan))
		got, next, err := s.read(ctx, ReadRequest{Queue: queueID, From: from, MaxMessages: n, MaxBytes: copyBytes}, nil)
		for i := range got {
			if got[i].Sequence <= last {
				found.Messages = append(found.Messages, got[i])
				size += len(got[i].Record)
			}
		}
		var bad *DamagedMessagesError
		switch {
		case errors.As(err, &bad):
			s.note(bad) // this node wants it repaired, too
			for _, seq := range bad.Sequences {
				if seq <= last {
					found.Damaged = append(found.Damaged, seq)
				}
			}
			from = bad.Sequences[len(bad.Sequences)-1] + 1
		case err != nil:
			return FoundMessages{}, err
		case next <= from: // nothing more there
			return found, nil
		default:
			from = next
		}
	}
	return found, nil
}

// errNoCopy is returned when the other node could not be asked.
var errNoCopy = errors.New("the other node's copy cannot be had")

// repairMessages makes good what a read found to be damaged, within repairWait. Its error says why it could not. At
// once is for a caller that does not come again and again.
func (s *Store) repairMessages(ctx context.Context, bad *DamagedMessagesError, atOnce bool) error {
	s.note(bad)
	ctx, cancel := context.WithTimeout(ctx, repairWait)
	defer cancel()
	select {
	case s.damage.busy <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("repair: %w", ctx.Err())
	}
	defer func() { <-s.damage.busy }()
	return s.repairOne(ctx, bad.Queue, bad.Sequences[0], atOnce)
}

// RepairAll tries to repair whatever is known to be damaged. It returns how many messages still are.
func (s *Store) RepairAll(ctx context.Context) (left int, err error) {
	if err := s.lookUpSuspects(); err != nil {
		return 0, err
	}
	all := s.Damaged(maxDamaged)
	for i, m := range all {
		bad := &DamagedMessagesError{Queue: m.Queue, Sequences: []uint64{m.Sequence}, Err: errors.New(m.Reason)}
		if !s.damage.has(m.Queue, m.Sequence) {
			continue // repaired with one before
		}
		err := s.repairMessages(ctx, bad, true)
		if err != nil {
			left++
		}
		if ctx.Err() != nil {
			return left, fmt.Errorf("repair: %w", ctx.Err())
		}
		if errors.Is(err, errNoCopy) { // no node to ask now: the others need not be tried
			left += len(all) - i - 1
			break
		}
	}
	return left, s.dropDamagedLog(ctx)
}

// runState is what this node has of the run that a sequence is in.
type runState struct {
	entry index.Entry // its run is zero if there is none
	alive []uint64    // who is wanted
	have  []Delivery  // what of that can be read
	why   error       // what is wrong with the rest; nil: nothing
}

// lookAt reads the run that a wanted message is in.
func (s *Store) lookAt(queueID, seq uint64) (runState, error) {
	s.ioMu.RLock()
	defer s.ioMu.RUnlock()
	if err := s.usable(); err != nil {
		return runState{}, err
	}
	guard := s.file.ReadGuard()
	defer guard.Release()
	k, v, ok, err := s.index.View().SeekFloor(index.AppendKey(nil, queueID, seq))
	if err != nil {
		return runState{}, s.indexError(err)
	}
	e, found, err := entryOf(k, v, ok, queueID)
	if err != nil {
		return runState{}, err
	}
	if !found || e.Last() < seq {
		e = index.Entry{Queue: queueID, First: seq, Span: 1}
	}
	st := runState{entry: e}
	s.mu.RLock()
	st.alive = alive(s.state.Queue(queueID), e.First, e.Last())
	if e.Run.IsZero() {
		st.alive = slices.DeleteFunc(st.alive, func(q uint64) bool {
			_, inMemory := s.state.Queue(queueID).TailRecord(q)
			return inMemory
		})
	}
	s.mu.RUnlock()
	if e.Run.IsZero() {
		st.why = fmt.Errorf("%w: no page has it", index.ErrDataLoss)
		return st, nil
	}
	_, payload, err := s.file.ReadRun(e.Run, nil)
	if err != nil {
		if unreadable(err) {
			st.why = err
			return st, nil
		}
		return st, fmt.Errorf("look at a run: %w", err)
	}
	st.have, st.why = wantedOf(payload, st.alive)
	return st, nil
}

// wantedOf takes the wanted messages out of a run; the error says that some are missing.
func wantedOf(payload []byte, want []uint64) (have []Delivery, err error) {
	r, err := index.NewRunReader(payload)
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
			have = append(have, Delivery{Sequence: seq, Record: record})
		}
	}
	if len(have) < len(want) {
		return have, fmt.Errorf("%w: the page has only %d of %d messages", index.ErrDataLoss, len(have), len(want))
	}
	return have, nil
}

// indexError makes the damage of a page that is not messages known.
func (s *Store) indexError(err error) error {
	if unreadable(err) {
		return s.noteIndex(err)
	}
	return fmt.Errorf("read the index: %w", err)
}

// repairOne repairs the run that a wanted message is in. nil: it can be read again, or no subscription wants it any
// more. The token of damage.busy is held.
func (s *Store) repairOne(ctx context.Context, queueID, seq uint64, atOnce bool) error {
	st, err := s.lookAt(queueID, seq)
	if err != nil {
		return err
	}
	if st.why == nil || len(st.alive) == 0 {
		s.damage.forget(queueID, append(st.alive, seq))
		return nil
	}
	missing := st.missing()
	if err := s.mayRepair(queueID, missing, st.why, atOnce); err != nil {
		return err
	}
	source := s.damage.source.Load()
	if source == nil {
		err := fmt.Errorf("%w; and %w: there is no other node", st.why, errNoCopy)
		if s.damage.alone.Load() {
			s.noteAnswer(&DamagedMessagesError{Queue: queueID, Sequences: missing, Err: err}, true)
		}
		return err
	}
	found, err := s.fetchAll(ctx, *source, queueID, missing)
	if err != nil {
		err = fmt.Errorf("%w; and %w: %w", st.why, errNoCopy, err)
		s.note(&DamagedMessagesError{Queue: queueID, Sequences: missing, Err: err})
		return err
	}
	gained, err := st.merge(&found, missing)
	if err != nil {
		s.note(&DamagedMessagesError{Queue: queueID, Sequences: missing, Err: err})
		return err
	}
	if gained > 0 {
		if err := s.pager.replaceRun(&st); err != nil {
			return fmt.Errorf("repair queue %d, sequences %d to %d: %w", queueID, st.entry.First, st.entry.Last(), err)
		}
		s.damage.count(func(d *DamageStatus) { d.RepairedPages++; d.RepairedMessages += uint64(gained) })
		s.o.Events(events.PageRepaired{
			Queue: queueID, First: st.entry.First, Last: st.entry.Last(), Messages: gained, Was: st.why,
		})
		restored := make([]uint64, 0, len(st.have))
		for i := range st.have {
			restored = append(restored, st.have[i].Sequence)
		}
		s.damage.forget(queueID, restored)
	}
	return s.stillMissing(queueID, seq, &st, &found)
}

// stillMissing notes what a repair could not bring back. It returns nil if the message that was asked for is not among
// it.
func (s *Store) stillMissing(queueID, seq uint64, st *runState, found *FoundMessages) error {
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
		why := fmt.Errorf("%w; and it is damaged on the other node as well", st.why)
		s.noteAnswer(&DamagedMessagesError{Queue: queueID, Sequences: lost, Err: why}, true)
		if slices.Contains(lost, seq) {
			err = why
		}
	}
	if len(later) > 0 {
		// Applied there and dead, which it will soon be here; or not applied there yet.
		why := fmt.Errorf("%w; and the other node does not have it now", st.why)
		s.noteAnswer(&DamagedMessagesError{Queue: queueID, Sequences: later, Err: why}, false)
		if slices.Contains(later, seq) {
			err = why
		}
	}
	return err
}

// missing are the wanted messages that cannot be read.
func (st *runState) missing() []uint64 {
	var out []uint64
	for _, q := range st.alive {
		if !slices.ContainsFunc(st.have, func(d Delivery) bool { return d.Sequence == q }) {
			out = append(out, q)
		}
	}
	return out
}

// fetchAll asks the other node until it has said all that it has.
func (s *Store) fetchAll(
	ctx context.Context, source MessageSource, queueID uint64, missing []uint64,
) (FoundMessages, error) {
	first, last := missing[0], missing[len(missing)-1]
	all := FoundMessages{Last: last}
	for first <= last {
		got, err := source.FetchMessages(ctx, queueID, first, last, s.Applied())
		if err != nil {
			return all, err
		}
		all.Messages = append(all.Messages, got.Messages...)
		all.Damaged = append(all.Damaged, got.Damaged...)
		if got.Last < first {
			return all, fmt.Errorf("%w: an answer that leads nowhere", index.ErrDataLoss)
		}
		first = got.Last + 1
	}
	slices.Sort(all.Damaged)
	return all, nil
}

// merge adds what came from the other node to what is there. It refuses what cannot be what was written here.
func (st *runState) merge(found *FoundMessages, missing []uint64) (gained int, err error) {
	for i := range found.Messages {
		m := &found.Messages[i]
		if _, wanted := slices.BinarySearch(missing, m.Sequence); !wanted {
			continue
		}
		if _, err := txn.DecodeMessage(m.Record); err != nil {
			return 0, fmt.Errorf("%w; and what the other node has for sequence %d is no message: %w", st.why,
				m.Sequence, err)
		}
		st.have = append(st.have, Delivery{Sequence: m.Sequence, Record: bytes.Clone(m.Record)})
		gained++
	}
	slices.SortFunc(st.have, func(a, b Delivery) int { return int(int64(a.Sequence) - int64(b.Sequence)) })
	st.have = slices.CompactFunc(st.have, func(a, b Delivery) bool { return a.Sequence == b.Sequence })
	if e := &st.entry; !e.Run.IsZero() && uint64(len(st.have)) == e.Count {
		size := 0
		for i := range st.have {
			size += txn.UvarintBytes(st.have[i].Sequence-e.First) + len(st.have[i].Record)
		}
		if uint64(size) != e.Bytes {
			return 0, fmt.Errorf("%w; and the other node's messages are not the same: they take %d bytes, not %d; "+
				"run `lockstep verify`",
				st.why, size, e.Bytes)
		}
	}
	return gained, nil
}
