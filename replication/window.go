// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// sent is what was sent with one batch and is not acknowledged.
type sent struct {
	end   lsn.Position
	bytes int
	at    time.Time
	// way is the span of it until it is acknowledged; nil for none.
	way Span
}

// window is what is under way to a standby: sent on this connection, and not acknowledged. The sender adds to it, the
// receiver takes from it. It has a lock of its own, so that the sender does not meet the committer for it; Primary.mu
// may be held where it is locked, and not the other way round.
type window struct {
	mu      sync.Mutex // guards all below
	batches []sent     // oldest first
	bytes   int
	// progress is when batches last got shorter, or began.
	progress time.Time
	// full: the sender waits for an ack.
	full bool
}

// add notes that a batch is sent now.
func (w *window) add(b sent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.batches) == 0 {
		w.progress = b.at
	}
	w.batches = append(w.batches, b)
	w.bytes += b.bytes
}

// acknowledge removes what an ack covers. Acks name the end of a batch that was sent, with the checksum of the whole
// history. It tells whether the sender waits for it.
func (w *window) acknowledge(at lsn.Position, meter Meter) (awaited bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := 0
	for i < len(w.batches) && w.batches[i].end.LSN < at.LSN {
		i++
	}
	if i == len(w.batches) || w.batches[i].end != at {
		return false, fmt.Errorf("%w: the standby acknowledges %v, which is the end of nothing that was sent",
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

// endTraces ends the spans of what is not acknowledged, and will not be on this connection.
func (w *window) endTraces(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range w.batches {
		endSpan(w.batches[i].way, time.Now(), err)
		w.batches[i].way = nil
	}
}

// room is how many of limit bytes may be sent now. When it is none, the next ack finds the sender waiting.
func (w *window) room(limit int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	room := limit - w.bytes
	w.full = room <= 0
	return room
}

// inFlight is how many bytes are under way.
func (w *window) inFlight() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.bytes
}

// progressed tells whether nothing waits for an ack, or one came after since.
func (w *window) progressed(since time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.batches) == 0 || w.progress.After(since)
}
