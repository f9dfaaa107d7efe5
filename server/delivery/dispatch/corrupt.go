// SPDX-License-Identifier: Apache-2.0

package dispatch

import "slices"

// setDamaged removes corrupt messages from a read result. It also detects the first message with a group, from which
// on the dispatcher maintains groups.
func (d *dispatcher) setDamaged(messages []Message) []Message {
	_, grouped := d.order.(*selective)
	messages = slices.DeleteFunc(messages, func(m Message) bool {
		if m.Record == nil {
			d.damaged.push(m.Sequence)
			return true
		}
		grouped = grouped || hasGroup(m.Record)
		return false
	})
	if grouped {
		d.selects()
	}
	return messages
}

// retryDamaged schedules another read of corrupt messages, which may have been repaired.
func (d *dispatcher) retryDamaged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.damaged.len() > 0 {
		d.order.giveBack([]uint64{d.damaged.pop()})
	}
}
