// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// seedRetention is how long the log after a snapshot is retained while the replica is not connected.
const seedRetention = 10 * time.Minute

// retention retains the log after the last snapshot that was sent to a replica. The log is retained while the
// snapshot is sent, and for seedRetention after that. While the replica pulls the log, the log is retained until
// the replica has received the records that it lacked. Low disk space ends the retention.
type retention struct {
	mu  sync.Mutex // guards the fields below
	now *retained  // nil if none
}

// retained represents the use of the retained log by one stream. The next stream creates a new retained.
type retained struct {
	hold   *wal.Hold
	after  uint64                  // LSN of the last record in the snapshot
	cancel context.CancelCauseFunc // ends the transfer of the snapshot; nil when the transfer has ended
	timer  *time.Timer             // nil while a stream uses it
}

// begin retains the log after a record for the transfer of a snapshot. cancel ends the transfer. begin ends the
// retention for the previous snapshot, and returns the retained log.
func (r *retention) begin(hold *wal.Hold, after uint64, cancel context.CancelCauseFunc) *retained {
	k := &retained{hold: hold, after: after, cancel: cancel}
	r.mu.Lock()
	old := r.now
	r.now = k
	r.mu.Unlock()
	if old != nil {
		old.end(errReplaced)
	}
	return k
}

// resume takes over the retained log for a replica that continues after a position. It returns nil if no log is
// retained for that replica, and during the transfer of a snapshot.
func (r *retention) resume(at lsn.Position) *retained {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.now
	if old == nil || old.cancel != nil || at.LSN < old.after {
		return nil
	}
	old.stopTimer()
	// The stream that used the log may not have detected that its connection is lost. When it ends, its call of
	// suspend has no effect.
	r.now = &retained{hold: old.hold, after: old.after}
	return r.now
}

// suspend starts the timer that releases the log after seedRetention.
func (r *retention) suspend(k *retained) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if k != nil && r.now == k {
		k.cancel = nil
		k.timer = time.AfterFunc(seedRetention, func() { r.release(k) })
	}
}

// release releases the log of k and cancels its transfer, if one is in progress. It does nothing if a later stream has
// taken over the log.
func (r *retention) release(k *retained) { r.drop(k, context.Canceled) }

// drop is like release, but with the given cause of the cancellation.
func (r *retention) drop(k *retained, cause error) {
	r.mu.Lock()
	if k == nil || r.now != k {
		r.mu.Unlock()
		return
	}
	r.now = nil
	r.mu.Unlock()
	k.end(cause)
}

// last returns the current retained log, or nil.
func (r *retention) last() *retained {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

func (k *retained) end(cause error) {
	k.stopTimer()
	k.hold.Release()
	if k.cancel != nil {
		k.cancel(cause)
	}
}

func (k *retained) stopTimer() {
	if k.timer != nil {
		k.timer.Stop()
	}
}
