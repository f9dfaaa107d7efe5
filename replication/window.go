// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// sent is a batch that was sent and is not acknowledged.
type sent struct {
	end   lsn.Position
	bytes int
	at    time.Time
	// span ends with the ack; nil if not traced.
	span Span
}

// window tracks the bytes in flight on one connection: sent and not acknowledged. The sender adds batches, and the
// receiver removes them. It has a separate lock to avoid contention with the committer. Primary.mu may be held when
// window.mu is locked, but not vice versa.
type window struct {
	mu      sync.Mutex // guards all below
	batches []sent     // oldest first
	bytes   int
	// progress is the time of the last ack, or of the first batch added to an empty window.
	progress time.Time
	// full is set while the sender waits for an ack.
	full bool
}

func (w *window) add(b sent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.batches) == 0 {
		w.progress = b.at
	}
	w.batches = append(w.batches, b)
	w.bytes += b.bytes
}

// acknowledge removes the acknowledged batches, and reports whether the sender waits for the ack. It returns
// ErrProtocol unless at is the end of an unacknowledged batch, with the checksum of the whole history.
func (w *window) acknowledge(at lsn.Position, meter Meter) (awaited bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := 0
	for i < len(w.batches) && w.batches[i].end.LSN < at.LSN {
		i++
	}
	if i == len(w.batches) || w.batches[i].end != at {
		return false, fmt.Errorf("%w: ack of %v, which is not the end of a sent batch", ErrProtocol, at)
	}
	w.progress = time.Now()
	for _, b := range w.batches[:i+1] {
		w.bytes -= b.bytes
		if meter != nil {
			meter.Acknowledged(w.progress.Sub(b.at))
		}
		if b.span != nil {
			b.span.End(w.progress, nil)
		}
	}
	w.batches = w.batches[i+1:]
	return w.full, nil
}

// endTraces ends the spans of batches that will not be acknowledged on this connection.
func (w *window) endTraces(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.batches {
		endSpan(w.batches[i].span, time.Now(), err)
		w.batches[i].span = nil
	}
}

// free returns the number of bytes that may be sent, at most limit. If the result is not positive, the next ack wakes
// the sender.
func (w *window) free(limit int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	free := limit - w.bytes
	w.full = free <= 0
	return free
}

func (w *window) inFlight() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes
}

// progressed reports whether no batch is in flight, or whether, after since, an ack arrived or a batch was sent into
// an empty window.
func (w *window) progressed(since time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.batches) == 0 || w.progress.After(since)
}
