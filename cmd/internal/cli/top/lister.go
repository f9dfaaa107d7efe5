// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// listQueues requests a page from the active. An active of an older release lists all queues by name, without activity:
// listQueues then sorts and filters the queues itself.
func listQueues(ctx context.Context, c *client.Client, q query) (page, error) {
	list, err := admin.New(c).ListQueues(ctx, admin.ListOptions{
		Contains: q.contains, Order: q.order.ofClient(), Descending: q.reversed == (q.order == byName),
		Offset: uint32(q.offset), Limit: uint32(q.limit),
	})
	if err != nil {
		return page{query: q}, err
	}
	if list.Total == 0 && len(list.Queues) > 0 {
		var all []Queue
		for found, err := range admin.New(c).Queues(ctx, "") {
			if err != nil {
				return page{query: q}, err
			}
			all = append(all, queueOf(&found))
		}
		return pageOf(all, q), nil
	}
	p := page{query: q, total: list.Total, queues: make([]Queue, 0, len(list.Queues))}
	for i := range list.Queues {
		p.queues = append(p.queues, queueOf(&list.Queues[i]))
	}
	return p, nil
}

func (o order) ofClient() admin.QueueOrder {
	return [...]admin.QueueOrder{
		admin.OrderMessages, admin.OrderPublished, admin.OrderDelivered, admin.OrderAcknowledged, admin.OrderAge,
		admin.OrderConsumers, admin.OrderName,
	}[o]
}

func activityFrom(a *admin.QueueActivity) *Activity {
	if a == nil {
		return nil
	}
	j := &Activity{}
	if a.Rates {
		j.Published, j.Delivered, j.Acknowledged = &a.Published, &a.Delivered, &a.Acknowledged
	}
	if !a.OldestAt.IsZero() {
		seconds := max(time.Since(a.OldestAt).Seconds(), 0)
		j.OldestSeconds = &seconds
	}
	return j
}

func pageOf(queues []Queue, q query) page {
	queues = slices.DeleteFunc(queues, func(x Queue) bool {
		return !strings.Contains(strings.ToLower(x.Name), strings.ToLower(q.contains))
	})
	sortQueues(queues, q)
	first := min(q.offset, len(queues))
	return page{query: q, total: len(queues), queues: queues[first:min(first+q.limit, len(queues))]}
}

func queueOf(q *admin.Queue) Queue {
	j := Queue{
		Name: q.Name, Messages: q.Messages, Bytes: q.Bytes, Delayed: q.Delayed,
		Subscriptions: make([]Subscription, 0, len(q.Subscriptions)), facts: factsOf(q),
		Activity: activityFrom(q.Activity),
	}
	for i := range q.Subscriptions {
		s := &q.Subscriptions[i]
		j.Consumers += uint64(s.Consumers)
		j.InFlight += s.InFlight
		j.Subscriptions = append(j.Subscriptions, Subscription{
			Name: s.Name, Backlog: s.Backlog, InFlight: s.InFlight, Consumers: uint64(s.Consumers), Filter: s.Filter,
		})
	}
	return j
}

func factsOf(q *admin.Queue) []fact {
	facts := []fact{{"published", output.Count(q.NextSequence-1) + " since creation"}}
	add := func(is bool, name, format string, args ...any) {
		if is {
			facts = append(facts, fact{name, fmt.Sprintf(format, args...)})
		}
	}
	c := &q.Config
	add(c.MaxMessages > 0, "limit", "%s", output.Plural(c.MaxMessages, "message"))
	add(c.MaxBytes > 0, "limit", "%s", output.Bytes(c.MaxBytes))
	add(c.MaxDeliveries > 0, "deliveries", "at most %d", c.MaxDeliveries)
	add(c.DeadLetter != "", "dead letters", "moved to %s", c.DeadLetter)
	add(q.Delayed > 0, "delayed", "%s", output.Plural(q.Delayed, "message"))
	add(q.Dropped > 0, "dropped", "%s", output.Plural(q.Dropped, "message"))
	add(q.Expired > 0, "expired", "%s", output.Plural(q.Expired, "message"))
	for i := range q.Forwards {
		add(true, "forwards to", "%s", q.Forwards[i].To)
	}
	return facts
}

// sortQueues sorts by descending value, or by ascending name; q.reversed reverses the order. Ties are sorted by
// ascending name.
func sortQueues(queues []Queue, q query) {
	slices.SortStableFunc(queues, func(x, y Queue) int {
		names := cmp.Compare(x.Name, y.Name)
		by := names
		if q.order != byName {
			by = cmp.Compare(sortKey(&y, q.order), sortKey(&x, q.order))
		}
		if q.reversed {
			by = -by
		}
		return cmp.Or(by, names)
	})
}

func sortKey(q *Queue, by order) float64 {
	a := q.Activity
	if a == nil {
		a = &Activity{}
	}
	known := func(v *float64) float64 {
		if v == nil {
			return -1
		}
		return *v
	}
	switch by {
	case byPublished:
		return known(a.Published)
	case byDelivered:
		return known(a.Delivered)
	case byAcknowledged:
		return known(a.Acknowledged)
	case byAge:
		return known(a.OldestSeconds)
	case byConsumers:
		return float64(q.Consumers)
	case byMessages, byName, orders:
	}
	return float64(q.Messages)
}
