// SPDX-License-Identifier: Apache-2.0

package store

import (
	"hash/crc32"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// Lookup is a queue, and perhaps one of its subscriptions, that Store.Lookup looks up by name.
type Lookup struct {
	// Queue is its name; Subscription the subscription's, "" for none.
	Queue, Subscription string

	// Found is set if there is such a queue.
	Found bool
	// QueueID is the queue's number, txn.NoQueue if there is none; Config what can be altered.
	QueueID uint64
	Config  txn.Config
	// Forwards are the queue's rules; not to be changed.
	Forwards []txn.Forward
	// Messages that some subscription has still to acknowledge, and their bytes.
	Messages, Bytes uint64
	// Subscriptions is how many the queue has.
	Subscriptions int
	// SubID is the subscription's number; txn.NoSub if there is no such subscription, or none was asked for.
	SubID uint32
}

// Prior is the result of a transaction that was applied before.
type Prior struct {
	Result txn.Result
	// Fingerprint of what was asked for (txn.Op.Fingerprint); 0 when it is not in memory: see LoggedFingerprint.
	Fingerprint uint32
}

// LoggedFingerprint is Prior.Fingerprint as the log has it, if it still has the record of the transaction, which was
// committed; 0 otherwise. It reads all of the record.
func (s *Store) LoggedFingerprint(record uint64) uint32 {
	r, err := s.ReadLog(record)
	if err != nil {
		return 0 // trimmed, as a rule
	}
	frame, err := r.Next()
	if err != nil || frame.Kind != wal.KindTxn {
		return 0
	}
	sum, err := txn.Fingerprint(frame.Payload, crc32.MakeTable(crc32.Castagnoli))
	if err != nil {
		return 0
	}
	return sum
}

// Lookup tells, as of one moment, what a transaction of producer p would meet. If it was applied before, prior is what
// it is answered with, and the names are not looked up (INV-10); retry is what the request says of itself. Otherwise
// each of names is filled in. p is nil for a transaction without a producer.
//
// The error is the txn.Code for which the transaction would be refused whatever its content, ErrClosed or ErrFailed. It
// allocates nothing but a prior.
func (s *Store) Lookup(p *txn.Producer, retry bool, names []Lookup) (prior *Prior, err error) {
	if err := s.usable(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if p != nil {
		if prior, err = priorOf(s.state, p, retry); err != nil || prior != nil {
			return prior, err
		}
	}
	for i := range names {
		names[i].fill(s.state)
	}
	return nil, nil //nolint:nilnil // the usual case: it was not applied before
}

// priorOf gives the result of a transaction that was applied before, nil if it was not.
func priorOf(st *queue.State, p *txn.Producer, retry bool) (*Prior, error) {
	result, ok, refused := st.Prior(*p)
	if retry {
		result, ok, refused = st.PriorOfRetry(*p)
	}
	switch {
	case refused != txn.OK:
		return nil, refused
	case !ok:
		return nil, nil //nolint:nilnil // it was not applied before
	}
	return &Prior{Result: result, Fingerprint: st.Fingerprint(*p)}, nil
}

// fill looks up the names.
func (l *Lookup) fill(st *queue.State) {
	l.QueueID, l.SubID = txn.NoQueue, txn.NoSub
	q := st.QueueByName(l.Queue)
	if q == nil {
		return
	}
	l.Found, l.QueueID, l.Config, l.Forwards = true, q.ID(), q.Config(), q.Forwards()
	l.Messages, l.Bytes, l.Subscriptions = q.Messages(), q.Bytes(), q.SubCount()
	if l.Subscription == "" {
		return
	}
	if sub := q.SubByName(l.Subscription); sub != nil {
		l.SubID = sub.ID()
	}
}
