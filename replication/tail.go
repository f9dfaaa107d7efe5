// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"fmt"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// batch is the unit of a log write: the frames after prev up to end. It is immutable once published.
type batch struct {
	frames    []byte
	prev, end lsn.Position
	// began is when the first transaction was accepted; zero without a meter.
	began time.Time
	trace *batchTrace
}

// tail keeps the newest batches in memory for the sessions. A batch is added before it is written to the log. It is
// removed only after it is in the log.
type tail struct {
	mu        sync.Mutex // guards the fields below
	limit     int
	batches   []batch
	bytes     int
	end       lsn.Position
	oversized atomic.Bool
	logged    uint64
	waiters   []logWaiter
}

type logWaiter struct {
	lsn  uint64
	done chan struct{}
}

func newTail(limit int, end lsn.Position) *tail {
	return &tail{limit: limit, end: end, logged: end.LSN}
}

func (t *tail) publish(b batch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.batches = append(t.batches, b)
	t.bytes += len(b.frames)
	t.end = b.end
}

// appended records that everything up to LSN n is in the log, and drops the oldest batches above the limit.
func (t *tail) appended(n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.logged = n
	t.waiters = slices.DeleteFunc(t.waiters, func(w logWaiter) bool {
		if w.lsn > n {
			return false
		}
		close(w.done)
		return true
	})
	for len(t.batches) > 1 && t.bytes > t.limit && t.batches[0].end.LSN <= n {
		t.bytes -= len(t.batches[0].frames)
		t.batches[0] = batch{}
		t.batches = t.batches[1:]
	}
	t.oversized.Store(t.bytes > t.limit)
}

// release drops the last batch, which appended retains, if that batch alone exceeds the limit and is in the log.
// Everything up to LSN n must be committed and applied.
func (t *tail) release(n uint64) {
	if !t.oversized.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.batches) == 1 && t.bytes > t.limit && t.batches[0].end.LSN <= min(n, t.logged) {
		t.batches, t.bytes = nil, 0
		t.oversized.Store(false)
	}
}

func (t *tail) loggedSignal() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := logWaiter{lsn: t.end.LSN, done: make(chan struct{})}
	if t.logged >= w.lsn {
		close(w.done)
	} else {
		t.waiters = append(t.waiters, w)
	}
	return w.done
}

// after appends the batches after LSN n to dst: the first one, and more up to limit bytes in total. ok is false if the
// tail begins after n.
func (t *tail) after(n uint64, limit int, dst []batch) (_ []batch, ok bool, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n >= t.end.LSN {
		return dst, true, nil
	}
	if len(t.batches) == 0 || n < t.batches[0].prev.LSN {
		return dst, false, nil
	}
	i := sort.Search(len(t.batches), func(i int) bool { return t.batches[i].end.LSN > n })
	for sum := 0; i < len(t.batches); i++ {
		b := t.batches[i]
		if b.prev.LSN < n { // the log reader may stop at any record
			if b, err = b.from(n); err != nil {
				return dst, false, err
			}
		}
		if sum += len(b.frames); sum > limit && len(dst) > 0 {
			break
		}
		dst = append(dst, b)
	}
	return dst, true, nil
}

func (b batch) from(n uint64) (batch, error) {
	for b.prev.LSN < n {
		f, rest, err := wal.NextFrame(b.frames, b.prev) // the frames were validated when they were encoded
		if err != nil {
			return b, fmt.Errorf("record after %v in memory: %w", b.prev, err)
		}
		b.frames, b.prev = rest, f.Pos
	}
	return b, nil
}

// behind returns the number of bytes after LSN n, rounded up to batches; ok is false if the tail begins after n.
func (t *tail) behind(n uint64) (bytes int, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n >= t.end.LSN {
		return 0, true
	}
	if len(t.batches) == 0 || n < t.batches[0].prev.LSN {
		return 0, false
	}
	for i := len(t.batches) - 1; i >= 0 && t.batches[i].end.LSN > n; i-- {
		bytes += len(t.batches[i].frames)
	}
	return bytes, true
}
