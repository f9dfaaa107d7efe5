// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// schedule verifies that each delayed message is in the schedule: otherwise it would never be delivered. An entry whose
// message or queue is deleted is removed when it is due.
func (c *checker) schedule(ctx context.Context) error {
	found := make(map[uint64]uint64) // by queue
	keys := queue.ScheduleKeys()
	err := c.p.CopyTree(ctx, keys.From, keys.To, func(key, value []byte) error {
		e, err := queue.ParseScheduleKey(key)
		if err != nil || len(value) > 0 {
			c.problem("schedule: key %x, value %x: %v", key, value, err)
			return nil
		}
		q := c.state.Queue(e.Queue)
		if q == nil {
			return nil
		}
		if e.Sequence == 0 || e.Sequence >= q.NextSequence() {
			c.problem("schedule: sequence %d of queue %d is not published yet", e.Sequence, e.Queue)
			return nil
		}
		if e.Kind == txn.DueDeliver && q.Delayed(e.Sequence) {
			found[e.Queue]++
		}
		return nil
	})
	if ctx.Err() != nil {
		return err
	}
	if err != nil {
		c.problem("schedule: %v", err)
	}
	for q := range c.state.Queues {
		if have, want := found[q.ID()], q.DelayedMessages(); have != want {
			c.problem("queue %d: %d messages are delayed, %d of them are in the schedule", q.ID(), want, have)
		}
	}
	return nil
}
