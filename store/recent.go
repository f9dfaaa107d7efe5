// SPDX-License-Identifier: Apache-2.0

package store

import (
	"sync"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// recentFrames retains appended frames in memory until they are applied. Its size is limited. If frames do not fit,
// Apply reads them from the log.
type recentFrames struct {
	mu      sync.Mutex
	batches []appended // oldest first, possibly with gaps
	bytes   int64
}

type appended struct {
	frames []byte
	before lsn.Position
	end    lsn.Position
}

// keep adds a batch. If other batches exist and the limit would be exceeded, keep does not add the batch.
func (r *recentFrames) keep(b appended, limit int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.batches) > 0 && r.bytes+int64(len(b.frames)) > limit {
		return
	}
	r.batches = append(r.batches, b)
	r.bytes += int64(len(b.frames))
}

// after removes fully applied batches. It returns the frames of the next batch and the position before them, if that
// position is not after applied.
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

// trim removes the applied prefix of the first batch. rest is the remainder of the batch.
func (r *recentFrames) trim(at lsn.Position, rest []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.batches) == 0 {
		return
	}
	switch first := &r.batches[0]; {
	// A fully applied batch must not count toward the limit of the next one, which may be very large.
	case first.end.LSN <= at.LSN:
		r.drop()
	case first.before.LSN <= at.LSN:
		r.bytes -= int64(len(first.frames) - len(rest))
		first.frames, first.before = rest, at
	}
}

// drop removes the first batch. The caller must hold mu.
func (r *recentFrames) drop() {
	r.bytes -= int64(len(r.batches[0].frames))
	r.batches[0] = appended{}
	r.batches = r.batches[1:]
}

func (r *recentFrames) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.batches, r.bytes = nil, 0
}
