// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// history is which cluster answered, and up to which revision.
type history struct {
	mu      sync.Mutex // guards what follows
	cluster uint64     // 0: none has answered yet
	last    int64
}

// revision returns the last revision of all responses so far.
func (h *history) revision() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// isOther notes a response to a linearizable request, and reports whether it is of another history than those before:
// of another cluster, or below the revision that was known when the request was made.
func (h *history) isOther(header *etcdserverpb.ResponseHeader, before int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	cluster, revision := header.GetClusterId(), header.GetRevision()
	other := h.cluster != 0 && h.cluster != cluster || revision < before
	if other {
		h.last = revision
	}
	h.cluster, h.last = cluster, max(h.last, revision)
	return other
}

// heed has the keys listed again if a response shows that etcd was restored or replaced: a proxy may keep the watch.
func (c *Coordinator) heed(header *etcdserverpb.ResponseHeader, before int64) {
	if c.history.isOther(header, before) {
		select {
		case c.replaced <- struct{}{}:
		default: // a signal is waiting already
		}
	}
}
