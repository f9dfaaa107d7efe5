// SPDX-License-Identifier: Apache-2.0

package query

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// PreparedInfo describes a prepared transaction.
type PreparedInfo struct {
	XID string
	// LSN is the txn.Result.LSN of the record that prepared the transaction.
	LSN uint64
	// TimeMS is the time at which the active prepared the transaction, in milliseconds since 1970.
	TimeMS int64
	// Bytes is the length of the stored transaction.
	Bytes int
	// Queues are the queues to which the transaction publishes or in which it acknowledges messages, ordered by name.
	Queues []PreparedQueue
}

// PreparedQueue describes the effect of a prepared transaction on one queue.
type PreparedQueue struct {
	Queue string
	// Publishes is the number of messages that the transaction publishes. Acks is the number of messages that it
	// acknowledges, in all subscriptions together.
	Publishes, Acks uint64
}

// Reserved lists the messages of one subscription that a prepared transaction reserves.
type Reserved struct {
	Queue uint64
	Sub   uint32
	// Ranges are the sequences of the messages, in no particular order.
	Ranges []txn.Range
}

// PreparedList returns at most limit prepared transactions with a PreparedInfo.LSN above after, oldest first. total
// and bytes are the number and the size of all prepared transactions. Errors: ErrClosed, ErrFailed.
func PreparedList(s *store.Store, after uint64, limit int) (list []PreparedInfo, total int, bytes uint64, err error) {
	if err := s.Usable(); err != nil {
		return nil, 0, 0, err
	}
	s.View(func(state *queue.State) {
		for _, p := range state.AllPrepared() {
			if p.Number() > after && len(list) < limit {
				list = append(list, preparedInfo(state, p))
			}
		}
		total, bytes = state.PreparedCount(), uint64(state.PreparedBytes())
	})
	return list, total, bytes, nil
}

// PreparedQueues returns the queues that the prepared transaction xid affects, or nil if it does not exist.
func PreparedQueues(s *store.Store, xid string) (queues []PreparedQueue) {
	s.View(func(state *queue.State) {
		if p := state.Prepared(xid); p != nil {
			queues = preparedInfo(state, p).Queues
		}
	})
	return queues
}

// OldestPrepared returns the XID, the logical number (PreparedInfo.LSN) and the time of the oldest prepared
// transaction. ok is false if no prepared transaction exists, or if the store is closed or has failed.
func OldestPrepared(s *store.Store) (xid string, number uint64, timeMS int64, ok bool) {
	if s.Usable() != nil {
		return "", 0, 0, false
	}
	s.View(func(state *queue.State) {
		if all := state.AllPrepared(); len(all) > 0 {
			xid, number, timeMS, ok = all[0].XID(), all[0].Number(), all[0].TimeMS(), true
		}
	})
	return xid, number, timeMS, ok
}

// ReservedBy returns the messages that the prepared transaction xid reserves, or nil if it does not exist.
func ReservedBy(s *store.Store, xid string) (held []Reserved) {
	s.View(func(state *queue.State) {
		p := state.Prepared(xid)
		if p == nil {
			return
		}
		for o := range p.Ops {
			if o.Code == txn.OpPublish {
				continue
			}
			i := slices.IndexFunc(held, func(r Reserved) bool { return r.Queue == o.Queue && r.Sub == o.Sub })
			if i < 0 {
				i = len(held)
				held = append(held, Reserved{Queue: o.Queue, Sub: o.Sub})
			}
			held[i].Ranges = slices.AppendSeq(held[i].Ranges, o.Ranges)
		}
	})
	return held
}

// ReservedSequences returns the given sequences that a prepared transaction reserves in any subscription.
func ReservedSequences(s *store.Store, id uint64, sequences []uint64) (reserved []uint64) {
	viewQueue(s, id, func(_ *queue.State, q *queue.Queue) {
		for _, sequence := range sequences {
			for sub := range q.Subs {
				if sub.Reserved(sequence) {
					reserved = append(reserved, sequence)
					break
				}
			}
		}
	})
	return reserved
}

// Pending is a message, and the numbers of the subscriptions that have not acknowledged it.
type Pending struct {
	Sequence uint64
	Subs     []uint32
}

// PendingMessages returns at most limit messages within ranges that subscription sub has not acknowledged. If sub is
// 0, it returns messages that at least one subscription has not acknowledged. It omits messages that a prepared
// transaction reserves in one of these subscriptions. The ranges must be ascending and must not overlap. Errors:
// ErrNoQueue if the queue or the subscription does not exist, txn.ErrBeyondEnd for a sequence beyond the end of the
// queue, ErrClosed, ErrFailed.
func PendingMessages(
	s *store.Store, id uint64, sub uint32, ranges []txn.Range, limit int,
) (out []Pending, err error) {
	if err := s.Usable(); err != nil {
		return nil, err
	}
	s.View(func(state *queue.State) {
		q := state.Queue(id)
		if q == nil || sub != 0 && q.Sub(sub) == nil {
			err = fmt.Errorf("%w: queue %d, subscription %d", store.ErrNoQueue, id, sub)
			return
		}
		if n := len(ranges); n > 0 && ranges[n-1].Last >= q.NextSequence() {
			err = fmt.Errorf("%w: sequence %d, the last one is %d", txn.ErrBeyondEnd, ranges[n-1].Last,
				q.NextSequence()-1)
			return
		}
		for _, r := range ranges {
			for seq := r.First; seq <= r.Last && len(out) < limit; seq++ {
				if subs := pendingIn(q, sub, seq); len(subs) > 0 {
					out = append(out, Pending{Sequence: seq, Subs: subs})
				}
			}
		}
	})
	return out, err
}

// pendingIn returns the numbers of the subscriptions that have not acknowledged a message, or nil if a prepared
// transaction reserves the message in one of them. If only is not 0, it considers only that subscription.
func pendingIn(q *queue.Queue, only uint32, seq uint64) (subs []uint32) {
	for sub := range q.Subs {
		switch {
		case only != 0 && sub.ID() != only, sub.Acked(seq):
		case sub.Reserved(seq):
			return nil
		default:
			subs = append(subs, sub.ID())
		}
	}
	return subs
}

func preparedInfo(state *queue.State, p *queue.Prepared) PreparedInfo {
	info := PreparedInfo{XID: p.XID(), LSN: p.Number(), TimeMS: p.TimeMS(), Bytes: p.Bytes()}
	for o := range p.Ops {
		name := state.Queue(o.Queue).Name() // the queue exists: it cannot be deleted
		i := slices.IndexFunc(info.Queues, func(q PreparedQueue) bool { return q.Queue == name })
		if i < 0 {
			i = len(info.Queues)
			info.Queues = append(info.Queues, PreparedQueue{Queue: name})
		}
		if o.Code == txn.OpPublish {
			info.Queues[i].Publishes += uint64(o.Count)
			continue
		}
		for r := range o.Ranges {
			info.Queues[i].Acks += r.Last - r.First + 1
		}
	}
	slices.SortFunc(info.Queues, func(a, b PreparedQueue) int { return cmp.Compare(a.Queue, b.Queue) })
	return info
}
