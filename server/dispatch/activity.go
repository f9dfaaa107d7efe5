// SPDX-License-Identifier: Apache-2.0

package dispatch

// Activity is what consumers of a queue, or of one of its subscriptions, do.
type Activity struct {
	// Consumers that are attached.
	Consumers uint32
	// Delivered is how many messages were handed to consumers. It begins again when the last consumer of a subscription
	// has left.
	Delivered uint64
}

// Activity returns what is done in each queue that has consumers, by its number.
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

// Load tells how many more messages the consumer may be given, and how many it has and has not answered for.
func (c *Consumer) Load() (credit, unacknowledged uint64) {
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	return uint64(max(c.credit, 0)), uint64(len(c.inFlight))
}
