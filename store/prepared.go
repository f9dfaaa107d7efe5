// SPDX-License-Identifier: Apache-2.0

package store

import (
	"cmp"
	"slices"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// PreparedInfo describes a prepared transaction.
type PreparedInfo struct {
	// XID is its name, LSN the LSN of the record that prepared it.
	XID string
	LSN uint64
	// TimeMS is the time at which the active prepared it, in milliseconds since 1970.
	TimeMS int64
	// Bytes is the memory that it occupies.
	Bytes int
	// Queues that it publishes to or acknowledges in, by name.
	Queues []PreparedQueue
}

// PreparedQueue describes the effect of a prepared transaction on one queue.
type PreparedQueue struct {
	// Queue is its name.
	Queue string
	// Publishes counts the messages that will be published, Acks those that will be acknowledged in any subscription.
	Publishes, Acks uint64
}

// Reserved lists the messages of one subscription that a prepared transaction holds.
type Reserved struct {
	// Queue is the queue's number, Sub the subscription's.
	Queue uint64
	Sub   uint32
	// Ranges of messages, in no particular order.
	Ranges []txn.Range
}

// PreparedList returns at most limit prepared transactions that were prepared after a record, oldest first. total and
// bytes cover all prepared transactions.
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

// PreparedQueues returns the queues that the prepared transaction xid affects, or nil if it does not exist.
func (s *Store) PreparedQueues(xid string) []PreparedQueue {
	s.mu.RLock()
	defer s.mu.RUnlock()
	p := s.state.Prepared(xid)
	if p == nil {
		return nil
	}
	return preparedInfo(s.state, p).Queues
}

// OldestPrepared returns the name, LSN and time of the oldest prepared transaction; ok is false if none exists. It
// costs nothing while no transaction is prepared.
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

// Reserved returns the messages that the prepared transaction xid holds, or nil if it does not exist.
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
		name := state.Queue(o.Queue).Name() // the queue cannot be deleted
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
