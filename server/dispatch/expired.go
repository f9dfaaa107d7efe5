// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"time"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// overdueAgain is after how many rounds of damagedAgain it is looked whether expired messages are gone: the clock may
// have gone back, or their queue have a longer TTL.
const overdueAgain = 12

// expired tells whether the time of a message is over, by its own word or by its queue's TTL. A message without
// attributes of a queue without a TTL costs two looks. now is asked for when it is needed. The dispatcher's lock is
// held.
func (d *dispatcher) expired(m *Message, now *int64) bool {
	has := txn.RecordHasAttributes(m.Record)
	if !has && d.ttl == 0 {
		return false
	}
	if *now == 0 {
		*now = time.Now().UnixMilli()
	}
	if d.ttl != 0 && txn.RecordSinceMS(m.Record)+d.ttl <= *now {
		return true
	}
	if !has {
		return false
	}
	at := txn.RecordTime(m.Record, txn.AttributeExpiresAt)
	return at != 0 && at <= *now
}

// overdueMessages takes messages from the consumer that has them in its outbox and will not be sent them: they are
// expired, or moved to the dead-letter queue, by others. The dispatcher's lock is held.
func (c *Consumer) overdueMessages(sequences []uint64) {
	d := c.d
	for _, sequence := range sequences {
		c.forgetOne(sequence, false)
		d.overdue.push(sequence)
	}
	if d.order.tracks() {
		d.order.answered(sequences)
	}
	signal(d.wake)
}

// retryOverdue has messages read again that had expired.
func (d *dispatcher) retryOverdue() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.overdue.len() > 0 {
		d.giveBack([]uint64{d.overdue.pop()})
	}
}
