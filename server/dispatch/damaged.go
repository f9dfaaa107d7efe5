// SPDX-License-Identifier: Apache-2.0

package dispatch

import "slices"

// setDamaged takes the messages out of a result that could not be read. It looks for the first one with a group, too:
// from then on the dispatcher keeps groups.
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

// retryDamaged has the messages read again that could not be read: they may have been repaired.
func (d *dispatcher) retryDamaged() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.damaged.len() > 0 {
		d.order.giveBack([]uint64{d.damaged.pop()})
	}
}
