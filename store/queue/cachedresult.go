// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// CachedResult returns the result that Apply would return for producer p without evaluating the transaction: the result
// applied under the same sequence, or the code of a rejection. With neither, the transaction would be applied. A server
// can thus answer a retry whose queue is deleted or full (INV-10).
func (s *State) CachedResult(p txn.Producer) (prior txn.Result, ok bool, refused txn.Code) {
	_, kept, code := s.producers.lookup(p)
	return cachedResultOf(kept, code)
}

// CachedResultOfRetry is CachedResult for a transaction that the producer has sent before. An unknown producer may have
// been forgotten together with the result; Apply cannot detect this and would apply a low sequence again.
func (s *State) CachedResultOfRetry(p txn.Producer) (prior txn.Result, ok bool, refused txn.Code) {
	known, kept, code := s.producers.lookup(p)
	if known == nil && s.producers.forgotten > 0 && !mutate.Off("INV-10-retry-of-a-forgotten-producer-is-let-in") {
		code = txn.ErrProducerForgotten
	}
	return cachedResultOf(kept, code)
}

// Fingerprint returns txn.Op.Fingerprint over the operations of the transaction whose result CachedResult returns. It
// is 0 if unknown: for rejected transactions, and those applied before the state was loaded.
func (s *State) Fingerprint(p txn.Producer) uint32 {
	if _, kept, _ := s.producers.lookup(p); kept != nil {
		return kept.fingerprint
	}
	return 0
}

func cachedResultOf(kept *cachedResult, code txn.Code) (prior txn.Result, ok bool, refused txn.Code) {
	if kept == nil {
		return txn.Result{}, false, code
	}
	return kept.result(), true, txn.OK
}
