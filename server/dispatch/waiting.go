// SPDX-License-Identifier: Apache-2.0

package dispatch

import "sync/atomic"

const (
	// leastOutbox is how much may wait for a consumer however much waits for others. Less than that is not counted.
	leastOutbox = 16 << 10
	// unheardBatches bounds what is held for a client that says nothing: gRPC holds about one batch, and the next one
	// waits for it.
	unheardBatches = 2
)

// waiting counts what consumers hold in memory that their clients have not received, and how much each may hold: a
// client that does not read keeps its part for as long as it likes, and there may be thousands of them. It is safe for
// concurrent use.
type waiting struct {
	bytes     atomic.Int64
	consumers atomic.Int64
	outbox    atomic.Int64 // what each may have in its outbox; 0 when that is Limits.OutboxBytes
}

// add counts so many bytes more.
func (w *waiting) add(bytes int, l *Limits) {
	now := w.bytes.Add(int64(bytes))
	share := int64(0)
	if half := int64(l.WaitingBytes) / 2; half > 0 && now >= half {
		share = max(half/max(w.consumers.Load(), 1), leastOutbox)
	}
	if w.outbox.Load() != share {
		w.outbox.Store(share)
	}
}

// attached tells how many consumers there are.
func (w *waiting) attached(consumers int, l *Limits) {
	w.consumers.Store(int64(consumers))
	w.add(0, l)
}

// atMost is what is left at present of a limit for one consumer.
func (w *waiting) atMost(limit int) int {
	if share := w.outbox.Load(); share > 0 {
		return min(limit, int(share))
	}
	return limit
}

// outboxBytes is how much may wait for one consumer at present.
func (r *Registry) outboxBytes() int { return r.waiting.atMost(r.limits.Load().OutboxBytes) }

// batchBytes is how much is read, or handed out, at a time at present.
func (r *Registry) batchBytes() int { return r.waiting.atMost(r.limits.Load().BatchBytes) }

// recount tells the registry how much the consumer holds, if that has changed by step bytes: what waits, and what was
// handed out since its client said anything, as far as it can still be in the node. A client that reads and says
// nothing of it for long counts as one that does not read; it costs others no more than smaller batches. The
// dispatcher's lock is held.
func (c *Consumer) recount(step int) {
	l := c.d.registry.limits.Load()
	holds := c.outboxBytes + min(c.unheard, unheardBatches*l.BatchBytes)
	if change := holds - c.counted; change >= step || change <= -step {
		c.counted = holds
		c.d.registry.waiting.add(change, l)
	}
}

// heard notes that the client has said something, so that it reads. The dispatcher's lock is held.
func (c *Consumer) heard() {
	c.unheard = 0
	c.recount(leastOutbox)
}
