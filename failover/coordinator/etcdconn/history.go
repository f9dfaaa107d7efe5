// SPDX-License-Identifier: Apache-2.0

package etcdconn

import (
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// history contains the ID of the responding cluster, and the highest revision in its responses.
type history struct {
	mu      sync.Mutex // guards the fields below
	cluster uint64     // 0: no response yet
	last    int64
}

func (h *history) revision() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.last
}

// isOther records the cluster and the revision of a response to a linearizable request. It reports whether the response
// belongs to another history: another cluster, or a revision below the one known at the time of the request.
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

// Revision returns the highest revision in the responses of the current history; 0 before the first response.
func (w *Watch) Revision() int64 { return w.history.revision() }

// Check triggers a new listing of the keys if a response to a linearizable request proves that etcd was restored or
// replaced. In this case, a proxy may keep the old watch open. before is the result of Revision before the request.
func (w *Watch) Check(header *etcdserverpb.ResponseHeader, before int64) {
	if w.history.isOther(header, before) {
		select {
		case w.replaced <- struct{}{}:
		default: // a signal is already pending
		}
	}
}
