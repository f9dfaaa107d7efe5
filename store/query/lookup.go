// SPDX-License-Identifier: Apache-2.0

package query

import (
	"hash/crc32"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// Target names a queue and optionally one of its subscriptions. Lookup sets the other fields, unless it returns a
// prior result or an error.
type Target struct {
	Queue, Subscription string

	// Found reports whether the queue exists. A fenced queue counts as missing.
	Found bool
	// QueueID is txn.NoQueue unless Found is true.
	QueueID uint64
	Config  txn.Config
	// Paused reports whether publishing to the queue is paused.
	Paused bool
	// Forwards are the queue's forwarding rules. The caller must not modify them.
	Forwards []txn.Forward
	// Messages is the number of live messages, and Bytes is their size.
	Messages, Bytes uint64
	Subscriptions   int
	// SubID is txn.NoSub if the subscription does not exist or was not requested.
	SubID uint32
}

// Prior is the result of an earlier attempt of a transaction.
type Prior struct {
	Result txn.Result
	// Fingerprint is the txn.Op.Fingerprint of the request, or 0 if it is not in memory (see LoggedFingerprint).
	Fingerprint uint32
}

// LoggedFingerprint computes Prior.Fingerprint from the committed record of the transaction with the given
// txn.Result.LSN. It returns 0 if the log no longer contains the record, if the record is from the log of another
// site, or if the record cannot be read. It reads the whole record.
func LoggedFingerprint(s *store.Store, result uint64) uint32 {
	site := s.Site()
	record, ok := site.LSNOf(result)
	if !ok {
		return 0
	}
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

// Lookup reads the state on which a transaction depends, at one LSN. p is the producer of the transaction, or nil. If
// the transaction was applied or rejected before and the result is retained, Lookup returns that result as prior and
// ignores the targets (INV-10). Otherwise it sets the fields of the targets. retry is the retry flag of the request.
//
// The error is ErrClosed, ErrFailed, or the txn.Code with which the transaction would be rejected regardless of its
// content. Lookup allocates only the prior result.
func Lookup(s *store.Store, p *txn.Producer, retry bool, targets []Target) (prior *Prior, err error) {
	if err := s.Usable(); err != nil {
		return nil, err
	}
	s.View(func(state *queue.State) {
		if p != nil {
			if prior, err = priorOf(state, p, retry); err != nil || prior != nil {
				return
			}
		}
		for i := range targets {
			targets[i].fill(state)
		}
	})
	return prior, err
}

func priorOf(st *queue.State, p *txn.Producer, retry bool) (*Prior, error) {
	result, ok, refused := st.CachedResult(*p)
	if retry {
		result, ok, refused = st.CachedResultOfRetry(*p)
	}
	switch {
	case refused != txn.OK:
		return nil, refused
	case !ok:
		return nil, nil //nolint:nilnil // not applied before
	}
	return &Prior{Result: result, Fingerprint: st.Fingerprint(*p)}, nil
}

func (t *Target) fill(st *queue.State) {
	t.QueueID, t.SubID = txn.NoQueue, txn.NoSub
	q := st.QueueByName(t.Queue)
	if q == nil {
		return
	}
	if _, _, fenced := q.Fence(); fenced {
		return
	}
	t.Found, t.QueueID, t.Config, t.Forwards = true, q.ID(), q.Config(), q.Forwards()
	t.Messages, t.Bytes, t.Subscriptions, t.Paused = q.Messages(), q.Bytes(), q.SubCount(), q.Pause().Publish
	if t.Subscription == "" {
		return
	}
	if sub := q.SubByName(t.Subscription); sub != nil {
		t.SubID = sub.ID()
	}
}
