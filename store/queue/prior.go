// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Prior tells what Apply would say to a transaction of producer p before it looks at the transaction: the result of the
// one that was applied under the same sequence, or why it would be refused. With neither, it would be applied. It
// changes nothing, so that a server can answer a retry whose queue is gone or full by now (INV-10).
func (s *State) Prior(p txn.Producer) (prior txn.Result, ok bool, refused txn.Code) {
	_, kept, code := s.producers.lookup(p)
	return priorOf(kept, code)
}

// PriorOfRetry is Prior for a transaction that its producer has sent before. Such a producer is not a new one: if it is
// not known, it may have been forgotten together with the result, and Apply, which cannot know that, would apply a low
// sequence once more.
func (s *State) PriorOfRetry(p txn.Producer) (prior txn.Result, ok bool, refused txn.Code) {
	known, kept, code := s.producers.lookup(p)
	if known == nil && s.producers.forgotten > 0 && !mutate.Off("INV-10-retry-of-a-forgotten-producer-is-let-in") {
		code = txn.ErrProducerForgotten
	}
	return priorOf(kept, code)
}

// Fingerprint gives txn.Op.Fingerprint over the operations of the transaction that Prior gives the result of. It is 0
// when it is not known: it is kept in memory only, of what was applied since the state was loaded, and not of what was
// refused.
func (s *State) Fingerprint(p txn.Producer) uint32 {
	if _, kept, _ := s.producers.lookup(p); kept != nil {
		return kept.fingerprint
	}
	return 0
}

func priorOf(kept *keptResult, code txn.Code) (prior txn.Result, ok bool, refused txn.Code) {
	if kept == nil {
		return txn.Result{}, false, code
	}
	return kept.result(), true, txn.OK
}
