// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"go.uber.org/zap"
)

const (
	// logInterval is the minimum interval between log lines about failures. All failures in an interval are logged in
	// one line.
	logInterval = 10 * time.Second
	// ManyFailures is the number of failures within a minute that raises a condition.
	ManyFailures = 100
	minuteSlots  = 6 // number of slots of a minute
)

type failures struct {
	log *zap.Logger

	mu      sync.Mutex // guards the fields below
	total   map[Check]uint64
	slots   [minuteSlots]uint64 // number of failures in each slot of the last minute
	slot    int64               // number of the newest slot, counted from 1970
	pending uint64
	logged  time.Time
	last    *Error
	from    netip.Prefix
	firstIn time.Time // time of the first failure that is not logged yet
}

func newFailures(log *zap.Logger) *failures {
	return &failures{log: log, total: make(map[Check]uint64)}
}

func (f *failures) add(e *Error, from netip.Prefix, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total[e.Check]++
	f.advance(now)
	f.slots[f.slot%minuteSlots]++
	if f.pending == 0 {
		f.firstIn = now
	}
	f.pending++
	f.last, f.from = e, from
	f.logPending(now)
}

// advance clears the slots that have begun since the last call. The caller must hold mu.
func (f *failures) advance(now time.Time) {
	slot := now.Unix() / int64(60/minuteSlots)
	if slot-f.slot >= minuteSlots || slot < f.slot {
		clear(f.slots[:])
	} else {
		for s := f.slot + 1; s <= slot; s++ {
			f.slots[s%minuteSlots] = 0
		}
	}
	f.slot = slot
}

// logPending logs the pending failures in one line, at most once per logInterval. The caller must hold mu.
func (f *failures) logPending(now time.Time) {
	if f.pending == 0 || now.Sub(f.logged) < logInterval {
		return
	}
	f.log.Warn("authentication failures", zap.Uint64("calls", f.pending),
		zap.Duration("within", now.Sub(f.firstIn).Round(time.Millisecond)), zap.String("last_from", addressKey(f.from)),
		zap.String("last_check", string(f.last.Check)), zap.String("last_error", f.last.text))
	f.logged, f.pending = now, 0
}

func addressKey(from netip.Prefix) string {
	if !from.IsValid() {
		return "an unknown address"
	}
	if from.IsSingleIP() {
		return from.Addr().String()
	}
	return from.String()
}

// check logs pending failures if they are due. It returns the number of failures in the last minute and a
// description.
func (f *failures) check(now time.Time) (lastMinute uint64, details string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.logPending(now)
	f.advance(now)
	for _, n := range f.slots {
		lastMinute += n
	}
	if f.last != nil {
		details = fmt.Sprintf("%d in the last minute; last from %s: %s", lastMinute, addressKey(f.from), f.last.text)
	}
	return lastMinute, details
}

func (f *failures) counts() map[Check]uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := make(map[Check]uint64, len(f.total))
	for _, c := range Checks() {
		out[c] = f.total[c]
	}
	return out
}
