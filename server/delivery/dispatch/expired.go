// SPDX-License-Identifier: Apache-2.0

package dispatch

import (
	"time"

	"github.com/lockstep-mq/lockstep/store/txn"
)

// overdueRetryInterval is the number of corruptRetryInterval periods between two checks of expired messages.
const overdueRetryInterval = 12

// expired reports whether a message has expired, by its own expiry time or by the TTL of its queue. If *now is 0,
// expired sets it to the current time.
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

// addOverdue removes expired messages from the consumer.
func (c *Consumer) addOverdue(sequences []uint64) {
	d := c.d
	for _, sequence := range sequences {
		c.removeInFlight(sequence, false)
		d.overdue.push(sequence)
	}
	if d.order.tracks() {
		d.order.settled(sequences)
	}
	signal(d.wake)
}

func (d *dispatcher) retryOverdue() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.overdue.len() > 0 {
		d.requeue([]uint64{d.overdue.pop()})
	}
}
