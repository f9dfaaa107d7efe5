// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/lockstep-mq/lockstep/store/queue"

// Meta returns the applied value of a metadata entry of the pair; ok is false if it does not exist. The caller must
// not modify the value. Entries change only through transactions (txn.OpPutMeta, txn.OpDeleteMeta), so both nodes
// have the same.
func (s *Store) Meta(key string) (value []byte, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.Meta(key)
}

// MetaPrefix returns the applied metadata entries of the pair whose keys begin with prefix, in key order.
func (s *Store) MetaPrefix(prefix string) []queue.MetaEntry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.MetaPrefix(prefix)
}

// WatchMeta returns a channel that receives after metadata entries of the pair changed. Signals are coalesced. The
// caller must call cancel when it is done.
func (s *Store) WatchMeta() (changed <-chan struct{}, cancel func()) { return s.Watch(queue.MetaQueue) }
