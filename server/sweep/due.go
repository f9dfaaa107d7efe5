// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// maxDue bounds the entries of the schedule that one transaction deals with: applying it takes a millisecond or
	// two.
	maxDue = 4096
	// idleWait is how long the schedule is left alone at most.
	idleWait = time.Second
)

// due goes through the schedule index: it lets delayed messages go, and hands those that expire to the expiry, which
// may take its time.
//
// It remembers how far it has come, since what is removed stays in the index, out of sight, until the next checkpoint.
// What is added behind it meanwhile, it goes back to at once; what had to stay, after a while.
type due struct {
	o      Options
	expiry *expiry
	at     txn.Due // the last entry that was dealt with
}

func newDue(o Options, e *expiry) *due { return &due{o: o, expiry: e} }

// Name says what the task does.
func (*due) Name() string { return "delayed messages" }

// Woken receives when a time is added to the schedule that is earlier than all others.
func (t *due) Woken() <-chan struct{} { return t.o.Store.Early() }

// Close has the store tell of no further times.
func (t *due) Close() { t.o.Store.SetAlarm(0) }

// Sweep does all that is due, a batch at a time; what becomes due while one is being committed is in the next one.
func (t *due) Sweep(ctx context.Context) (time.Duration, error) {
	for {
		t.goBack(t.o.Store.SoonestAdded())
		t.goBack(t.expiry.takeStayed(time.Now()))
		t.o.Store.SetAlarm(queue.NeverMS) // tell of anything that is added while the index is read
		entries, next, err := t.o.Store.Scheduled(t.at, time.Now().UnixMilli(), maxDue)
		if err != nil {
			return 0, fmt.Errorf("read the schedule: %w", err)
		}
		if len(entries) == 0 {
			t.o.Store.SetAlarm(next)
			return min(idleWait, max(0, time.Until(time.UnixMilli(next)))), nil
		}
		if err := t.batch(ctx, entries); err != nil {
			return 0, err
		}
		t.at = entries[len(entries)-1]
	}
}

// goBack goes back to a time that has come already; queue.NeverMS is none.
func (t *due) goBack(ms int64) {
	if ms <= t.at.TimeMS {
		t.at = txn.Due{TimeMS: ms}
	}
}

// batch deals with entries that are due.
func (t *due) batch(ctx context.Context, entries []txn.Due) error {
	var deliver, expire []txn.Due
	for _, e := range entries {
		if e.Kind == txn.DueDeliver {
			deliver = append(deliver, e)
		} else {
			expire = append(expire, e)
		}
	}
	t.expiry.add(expire)
	if len(deliver) == 0 {
		return nil
	}
	return propose(ctx, t.o.Primary, func(b *txn.Builder) { b.Due(deliver...) })
}
