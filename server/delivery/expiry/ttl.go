// SPDX-License-Identifier: Apache-2.0

package expiry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const ttlWait = time.Second

// ttl expires the messages of queues with a TTL. The messages of a queue are in the order of their time. Therefore
// it stops at the first message that has not expired.
type ttl struct {
	o         Options
	expiry    *expiry
	scannedAt map[uint64]nextCheck
}

// nextCheck contains the time of the next check of a queue. It is valid while the TTL is unchanged.
type nextCheck struct {
	ttl  int64
	next time.Time
}

func (*ttl) Name() string { return "TTL of queues" }

func (*ttl) Wake() <-chan struct{} { return nil }

func (t *ttl) RunOnce(ctx context.Context) (time.Duration, error) {
	wait := ttlWait
	scannedAt := make(map[uint64]nextCheck, len(t.scannedAt))
	var failed error
	for id, ttlMS := range query.TTLs(t.o.Store) {
		l := t.scannedAt[id]
		if l.ttl != ttlMS || !time.Now().Before(l.next) {
			next, err := t.processQueue(ctx, id, ttlMS)
			if ctx.Err() != nil {
				return 0, fmt.Errorf("TTL: %w", ctx.Err())
			}
			if err != nil {
				failed, next = errors.Join(failed, err), time.Now().Add(failedAgain)
			}
			l = nextCheck{ttl: ttlMS, next: next}
		}
		scannedAt[id] = l
		wait = min(wait, time.Until(l.next))
	}
	t.scannedAt = scannedAt
	return max(wait, time.Millisecond), failed
}

func (t *ttl) processQueue(ctx context.Context, id uint64, ttlMS int64) (next time.Time, err error) {
	t.expiry.pace.begin()
	for from := uint64(1); ; {
		now := time.Now()
		messages, to, err := t.o.Store.Read(ctx, store.ReadRequest{
			Queue: id, From: from, MaxMessages: t.expiry.pace.batch(), MaxBytes: maxExpireBytes, IncludeCorrupt: true,
		}, nil)
		if errors.Is(err, store.ErrNoQueue) {
			return now, nil
		}
		if err != nil {
			return now, fmt.Errorf("TTL of queue %d: %w", id, err)
		}
		over, first := t.over(id, messages, now.UnixMilli()-ttlMS)
		if len(over) > 0 {
			postponed, err := t.expiry.expire(ctx, over)
			if err != nil {
				return now, err
			}
			if len(postponed) > 0 && next.IsZero() {
				next = now.Add(postponedRetryInterval)
			}
		}
		switch {
		case first != 0 && next.IsZero():
			return time.UnixMilli(first + ttlMS), nil
		case first == 0 && to != from:
			from = to
			continue
		case next.IsZero(): // no message is left, and a new message has the full TTL
			return now.Add(time.Duration(ttlMS) * time.Millisecond), nil
		}
		return next, nil
	}
}

// over returns schedule entries for the messages that were added to their queue at byMS or before. first is the time
// of the first later message, or 0.
func (*ttl) over(id uint64, messages []store.Delivery, byMS int64) (over []txn.Due, first int64) {
	for i := range messages {
		if messages[i].Record == nil {
			continue // the corrupt message is repaired or discarded elsewhere
		}
		since := txn.RecordSinceMS(messages[i].Record)
		if since > byMS {
			return over, since
		}
		over = append(over, txn.Due{
			TimeMS: max(since, 0), Queue: id, Sequence: messages[i].Sequence, Kind: txn.DueTTL,
		})
	}
	return over, 0
}
