// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// maxDue limits the number of schedule entries in one transaction.
	maxDue   = 4096
	idleWait = time.Second
)

// due processes the schedule index. It releases delayed messages, removes message IDs that have left the dedup
// window, and passes expired messages to the expiry task. It records its position in the index.
type due struct {
	o      Options
	expiry *expiry
	at     txn.Due // last entry processed
}

func (*due) Name() string { return "delayed messages" }

func (t *due) Wake() <-chan struct{} { return t.o.Store.Early() }

func (t *due) Close() { t.o.Store.SetAlarm(0) }

// RunOnce processes all due entries in batches. Entries that become due during a commit are processed in the next
// batch.
func (t *due) RunOnce(ctx context.Context) (time.Duration, error) {
	for {
		t.rewind(t.o.Store.SoonestAdded())
		t.rewind(t.expiry.takePostponed(time.Now()))
		t.o.Store.SetAlarm(queue.NeverMS) // until the next call, each added entry wakes the task
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

func (t *due) rewind(ms int64) {
	if ms <= t.at.TimeMS {
		t.at = txn.Due{TimeMS: ms}
	}
}

func (t *due) batch(ctx context.Context, entries []txn.Due) error {
	var deliver, expire []txn.Due
	for _, e := range entries {
		if e.Kind != txn.DueExpire {
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
