// SPDX-License-Identifier: Apache-2.0

package dispatch

import "slices"

// filterCorrupt removes corrupt messages from a read result. From the first message with a group on, the dispatcher
// maintains groups.
func (d *dispatcher) filterCorrupt(messages []Message) []Message {
	_, grouped := d.order.(*selective)
	messages = slices.DeleteFunc(messages, func(m Message) bool {
		if m.Record == nil {
			d.corrupt.push(m.Sequence)
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

func (d *dispatcher) retryCorrupt() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.corrupt.len() > 0 {
		d.order.requeue([]uint64{d.corrupt.pop()})
	}
}
