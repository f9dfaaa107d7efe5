// SPDX-License-Identifier: Apache-2.0

package store

import "github.com/lockstep-mq/lockstep/store/queue"

// Meta gives the applied value of one of the pair's own entries; ok is false if there is none. The value is not to be
// changed. It changes through transactions only (txn.OpPutMeta, txn.OpDeleteMeta), so that both nodes have the same.
func (s *Store) Meta(key string) (value []byte, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.Meta(key)
}

// MetaPrefix gives the applied entries of the pair's own whose keys begin with prefix, in the order of their keys.
func (s *Store) MetaPrefix(prefix string) []queue.MetaEntry {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.MetaPrefix(prefix)
}

// WatchMeta returns a channel that receives after some of the pair's own entries changed. Signals are coalesced. The
// caller must call cancel when it is done.
func (s *Store) WatchMeta() (changed <-chan struct{}, cancel func()) { return s.Watch(queue.MetaQueue) }
