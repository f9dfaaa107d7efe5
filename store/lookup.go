// SPDX-License-Identifier: Apache-2.0

package store

import (
	"hash/crc32"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// Lookup names a queue, and optionally one of its subscriptions, for Store.Lookup.
type Lookup struct {
	// Queue is the name of the queue, Subscription the name of the subscription or "".
	Queue, Subscription string

	// Found is set if the queue exists.
	Found bool
	// QueueID is the queue's number, or txn.NoQueue if it does not exist. Config is the configuration that can be
	// altered.
	QueueID uint64
	Config  txn.Config
	// Forwards are the queue's forwarding rules. The caller must not modify them.
	Forwards []txn.Forward
	// Messages counts the messages that some subscription has not yet acknowledged, Bytes their size.
	Messages, Bytes uint64
	// Subscriptions is the number of subscriptions of the queue.
	Subscriptions int
	// SubID is the subscription's number, or txn.NoSub if it does not exist or was not requested.
	SubID uint32
}

// Prior is the result of a transaction that was applied before.
type Prior struct {
	Result txn.Result
	// Fingerprint of the request (txn.Op.Fingerprint), or 0 if it is not in memory: see LoggedFingerprint.
	Fingerprint uint32
}

// LoggedFingerprint returns Prior.Fingerprint from the log, if the log still has the committed record of the
// transaction; 0 otherwise. It reads the whole record.
func (s *Store) LoggedFingerprint(record uint64) uint32 {
	r, err := s.ReadLog(record)
	if err != nil {
		return 0 // usually trimmed
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

// Lookup returns the state that a transaction of producer p would find, as of one moment. If the transaction was
// applied before, Lookup returns the earlier result as prior and ignores the names (INV-10). retry is the retry flag
// of the request. Otherwise it fills in each of names. p is nil for a transaction without a producer.
//
// The error is the txn.Code with which the transaction would be rejected regardless of its content, ErrClosed or
// ErrFailed. Lookup allocates only the prior result.
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

// priorOf returns the result of a transaction that was applied before, or nil.
func priorOf(st *queue.State, p *txn.Producer, retry bool) (*Prior, error) {
	result, ok, refused := st.CachedResult(*p)
	if retry {
		result, ok, refused = st.CachedResultOfRetry(*p)
	}
	switch {
	case refused != txn.OK:
		return nil, refused
	case !ok:
		return nil, nil //nolint:nilnil // it was not applied before
	}
	return &Prior{Result: result, Fingerprint: st.Fingerprint(*p)}, nil
}

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
