// SPDX-License-Identifier: Apache-2.0

package dispatch

import "sync/atomic"

const (
	// minOutbox is the minimum outbox limit that results from Limits.BufferedBytes, in bytes.
	minOutbox = 16 << 10
	// maxUnconfirmedBatches limits the number of batches that are counted for a client that does not respond.
	maxUnconfirmedBatches = 2
)

// bufferedBytes counts the bytes buffered for all consumers, and limits the outboxes. It is safe for concurrent use.
type bufferedBytes struct {
	bytes     atomic.Int64
	consumers atomic.Int64
	outbox    atomic.Int64 // outbox limit of each consumer; 0 for Limits.OutboxBytes
}

func (w *bufferedBytes) add(bytes int, l *Limits) {
	now := w.bytes.Add(int64(bytes))
	share := int64(0)
	if limit := int64(l.BufferedBytes); limit > 0 && now >= limit/2 {
		share = max((limit-now)/max(w.consumers.Load(), 1), minOutbox)
	}
	if w.outbox.Load() != share {
		w.outbox.Store(share)
	}
}

func (w *bufferedBytes) attached(consumers int, l *Limits) {
	w.consumers.Store(int64(consumers))
	w.add(0, l)
}

func (w *bufferedBytes) atMost(limit int) int {
	if share := w.outbox.Load(); share > 0 {
		return min(limit, int(share))
	}
	return limit
}

func (r *Registry) outboxBytes() int { return r.buffered.atMost(r.limits.Load().OutboxBytes) }

func (r *Registry) batchBytes() int { return r.buffered.atMost(r.limits.Load().BatchBytes) }

// updateCount updates the registry's count of the consumer's bytes if the number has changed by at least step. The
// count includes the outbox, and the bytes delivered since the client's last message that the node may still be
// buffering.
func (c *Consumer) updateCount(step int) {
	l := c.d.registry.limits.Load()
	holds := c.outboxBytes + min(c.unconfirmedBytes, maxUnconfirmedBatches*l.BatchBytes)
	if change := holds - c.counted; change >= step || change <= -step {
		c.counted = holds
		c.d.registry.buffered.add(change, l)
	}
}

func (c *Consumer) clientResponded() {
	if c.deadlines.silent {
		c.deadlines.silent = false
		c.d.resumed()
	}
	c.unconfirmedBytes = 0
	c.updateCount(minOutbox)
}
