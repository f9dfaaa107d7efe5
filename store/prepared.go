// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"slices"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// PreparedInfo describes a transaction that waits for a decision.
type PreparedInfo struct {
	// XID is its name, LSN that of the record that prepared it.
	XID string
	LSN uint64
	// TimeMS is when the active prepared it, in milliseconds since 1970.
	TimeMS int64
	// Bytes that are kept for it.
	Bytes int
	// Queues that it publishes to or acknowledges in, by name.
	Queues []PreparedQueue
}

// PreparedQueue is what a prepared transaction will do in one queue.
type PreparedQueue struct {
	// Queue is its name.
	Queue string
	// Publishes and Acks are messages that will be published, and acknowledged in any subscription.
	Publishes, Acks uint64
}

// Reserved is what a prepared transaction holds of one subscription.
type Reserved struct {
	// Queue and Sub are the numbers.
	Queue uint64
	Sub   uint32
	// Ranges of messages, in no order.
	Ranges []txn.Range
}

// PreparedList describes transactions that wait for a decision: at most limit of those that were prepared after a
// record, the oldest first. total and bytes are about all of them.
func (s *Store) PreparedList(after uint64, limit int) (list []PreparedInfo, total int, bytes uint64, err error) {
	if err := s.usable(); err != nil {
		return nil, 0, 0, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, p := range s.state.AllPrepared() {
		if p.Number() > after && len(list) < limit {
			list = append(list, preparedInfo(s.state, p))
		}
	}
	return list, s.state.PreparedCount(), uint64(s.state.PreparedBytes()), nil
}

// PreparedQueues describes what the prepared transaction of a name will do in which queues; nothing if there is none.
func (s *Store) PreparedQueues(xid string) []PreparedQueue {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p := s.state.Prepared(xid)
	if p == nil {
		return nil
	}
	return preparedInfo(s.state, p).Queues
}

// OldestPrepared gives the name, the LSN and the time of the transaction that has waited longest for a decision; ok is
// false if there is none. It costs nothing while no transaction waits.
func (s *Store) OldestPrepared() (xid string, number uint64, timeMS int64, ok bool) {
	if s.usable() != nil {
		return "", 0, 0, false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := s.state.AllPrepared()
	if len(all) == 0 {
		return "", 0, 0, false
	}
	return all[0].XID(), all[0].Number(), all[0].TimeMS(), true
}

// Reserved gives what the prepared transaction of a name holds; nothing if there is none.
func (s *Store) Reserved(xid string) (held []Reserved) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p := s.state.Prepared(xid)
	if p == nil {
		return nil
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
	return held
}

func preparedInfo(state *queue.State, p *queue.Prepared) PreparedInfo {
	info := PreparedInfo{XID: p.XID(), LSN: p.Number(), TimeMS: p.TimeMS(), Bytes: p.Bytes()}
	for o := range p.Ops {
		name := state.Queue(o.Queue).Name() // it cannot be deleted
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
