// SPDX-License-Identifier: Apache-2.0

package dispatch

// Activity is the activity of the consumers of a queue or subscription.
type Activity struct {
	Consumers uint32
	// Delivered is the number of delivered messages. It restarts at 0 when the last consumer of a subscription has left.
	Delivered uint64
}

// Activity returns the activity by queue number, for queues with consumers.
func (r *Registry) Activity() map[uint64]Activity {
	r.mu.Lock()
	all := make([]*dispatcher, 0, len(r.byKey))
	for _, d := range r.byKey {
		all = append(all, d)
	}
	r.mu.Unlock()
	out := make(map[uint64]Activity, len(all))
	for _, d := range all {
		d.mu.Lock()
		a := out[d.key.Queue]
		a.Consumers += uint32(len(d.consumers))
		a.Delivered += d.delivered
		d.mu.Unlock()
		out[d.key.Queue] = a
	}
	return out
}

// Load returns the consumer's remaining credit and its number of unacknowledged messages.
func (c *Consumer) Load() (credit, unacknowledged uint64) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	return uint64(max(c.credit, 0)), uint64(len(c.inFlight))
}
