// SPDX-License-Identifier: Apache-2.0

package store

import (
	"sync"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// recentFrames keeps what was appended and is not yet wholly applied, so that applying need not read the log. It is a
// convenience, bounded in bytes: what does not fit is read from the log when its turn comes. A standby whose active is
// stuck, or whose pages are slow, would otherwise hold its whole log in memory.
type recentFrames struct {
	mu      sync.Mutex
	batches []appended // oldest first; there may be gaps between them
	bytes   int64      // of their frames
}

// appended is a batch of frames that is in the log and not yet wholly applied.
type appended struct {
	frames []byte
	before lsn.Position
	end    lsn.Position
}

// keep takes a batch in, unless there is one already and the bytes would exceed the limit.
func (r *recentFrames) keep(b appended, limit int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.batches) > 0 && r.bytes+int64(len(b.frames)) > limit {
		return
	}
	r.batches = append(r.batches, b)
	r.bytes += int64(len(b.frames))
}

// after returns frames that begin at or before the record after applied; ok is false if they are not here. What lies
// wholly behind is dropped.
func (r *recentFrames) after(applied lsn.Position) (frames []byte, before lsn.Position, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.batches) > 0 && r.batches[0].end.LSN <= applied.LSN {
		r.drop()
	}
	if len(r.batches) == 0 || r.batches[0].before.LSN > applied.LSN {
		return nil, lsn.Position{}, false
	}
	return r.batches[0].frames, r.batches[0].before, true
}

// trim remembers how far the first batch was applied, so that the next call need not walk it again. rest must be of
// that batch.
func (r *recentFrames) trim(at lsn.Position, rest []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.batches) == 0 {
		return
	}
	switch first := &r.batches[0]; {
	// wholly applied: it must not keep the next one, perhaps a very large one, from being kept
	case first.end.LSN <= at.LSN:
		r.drop()
	case first.before.LSN <= at.LSN:
		r.bytes -= int64(len(first.frames) - len(rest))
		first.frames, first.before = rest, at
	}
}

// drop takes the oldest batch out. mu is held.
func (r *recentFrames) drop() {
	r.bytes -= int64(len(r.batches[0].frames))
	r.batches[0] = appended{}
	r.batches = r.batches[1:]
}

// clear drops everything: the log was cut or begun anew.
func (r *recentFrames) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.batches, r.bytes = nil, 0
}
