// SPDX-License-Identifier: Apache-2.0

package historycheck

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// groups checks the order within groups. When a message of a group is delivered or redelivered, consumers must have
// acknowledged all earlier messages of the group. An acknowledgement is recorded before it is sent, and a delivery
// after it was received, so the rule applies to every consumer and across failovers. A lost acknowledgement causes a
// redelivery of the earlier message, but no later message is delivered before the acknowledgement was sent.
func (c *checker) groups() {
	type group struct{ queue, name string }
	type cursor struct {
		position
		sub string
	}
	members := map[group][]uint64{}
	for _, s := range c.h.Final {
		if p := c.sent[s.ID]; p != nil && p.Group != "" {
			g := group{s.Queue, p.Group}
			members[g] = append(members[g], s.Sequence)
		}
	}
	if len(members) == 0 {
		return
	}
	acked := map[cursor]time.Duration{}
	for _, a := range c.h.AcksSent {
		k := cursor{position{a.Queue, a.Sequence}, a.Sub}
		if at, ok := acked[k]; !ok || a.Sent < at {
			acked[k] = a.Sent
		}
	}
	// For each message: the time from which all earlier messages of its group were acknowledged.
	free := map[cursor]time.Duration{}
	for g, sequences := range members {
		slices.SortFunc(sequences, cmp.Compare)
		for _, sub := range c.subs(g.queue) {
			latest := time.Duration(math.MinInt64)
			for _, sequence := range sequences {
				k := cursor{position{g.queue, sequence}, sub}
				free[k] = latest
				at, ok := acked[k]
				if !ok {
					at = math.MaxInt64
				}
				latest = max(latest, at)
			}
		}
	}
	for _, d := range c.h.Deliveries {
		at, ok := free[cursor{position{d.Queue, d.Sequence}, d.Sub}]
		if ok && d.At < at {
			c.report(RuleGroup, "%s/%s: sequence %d (%v) of group %q was delivered at %v, before an earlier one was "+
				"acknowledged (%v)", d.Queue, d.Sub, d.Sequence, d.ID, c.sent[d.ID].Group, d.At, at)
		}
	}
}

// subs returns the subscriptions of a queue from which messages were delivered.
func (c *checker) subs(queue string) (names []string) {
	for _, d := range c.h.Deliveries {
		if d.Queue == queue && !slices.Contains(names, d.Sub) {
			names = append(names, d.Sub)
		}
	}
	return names
}
