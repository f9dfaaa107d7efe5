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
	// way is its span until the ack; nil if not traced.
	way Span
}

// window tracks the bytes in flight on one connection: sent and not acknowledged. The sender adds, the receiver
// removes. It has a separate lock to avoid contention with the committer. Primary.mu may be held when it is locked,
// but not vice versa.
type window struct {
	mu      sync.Mutex // guards all below
	batches []sent     // oldest first
	bytes   int
	// progress is the time of the last ack, or of the first batch of an empty window.
	progress time.Time
	// full: the sender waits for an ack.
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

// acknowledge removes the acknowledged batches. Acks name the end of a sent batch, with the checksum of the whole
// history. It reports whether the sender waits for the ack.
func (w *window) acknowledge(at lsn.Position, meter Meter) (awaited bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := 0
	for i < len(w.batches) && w.batches[i].end.LSN < at.LSN {
		i++
	}
	if i == len(w.batches) || w.batches[i].end != at {
		return false, fmt.Errorf("%w: the standby acknowledges %v, which is not the end of any sent record",
			ErrProtocol, at)
	}
	w.progress = time.Now()
	for _, b := range w.batches[:i+1] {
		w.bytes -= b.bytes
		if meter != nil {
			meter.Acknowledged(w.progress.Sub(b.at))
		}
		if b.way != nil {
			b.way.End(w.progress, nil)
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
		endSpan(w.batches[i].way, time.Now(), err)
		w.batches[i].way = nil
	}
}

// room returns how many of limit bytes may be sent now. If none, the next ack wakes the sender.
func (w *window) room(limit int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	room := limit - w.bytes
	w.full = room <= 0
	return room
}

func (w *window) inFlight() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes
}

// progressed reports whether nothing is unacknowledged, or an ack arrived after since.
func (w *window) progressed(since time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.batches) == 0 || w.progress.After(since)
}
