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
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/out"
)

// lister lists queues. It reads all of them and sorts here.
type lister struct {
	client *client.Client
	now    func() time.Time

	at     time.Time // of the last look
	before map[uint64]counted
}

// counted is what only rises in a queue.
type counted struct{ published, done uint64 }

func newLister(c *client.Client) *lister { return &lister{client: c, now: time.Now} }

func (l *lister) list(ctx context.Context, q query) (page, error) {
	var all []client.Queue
	for found, err := range l.client.Queues(ctx, "") {
		if err != nil {
			return page{query: q}, err
		}
		all = append(all, found)
	}
	return pageOf(l.measure(all), q), nil
}

// pageOf picks those that are wanted.
func pageOf(queues []Queue, q query) page {
	queues = slices.DeleteFunc(queues, func(x Queue) bool {
		return !strings.Contains(strings.ToLower(x.Name), strings.ToLower(q.contains))
	})
	sortQueues(queues, q)
	first := min(q.offset, len(queues))
	return page{query: q, total: len(queues), queues: queues[first:min(first+q.limit, len(queues))]}
}

// measure makes what is shown of what the active tells, with rates since the last look.
func (l *lister) measure(all []client.Queue) []Queue {
	now := l.now()
	passed := now.Sub(l.at).Seconds()
	after := make(map[uint64]counted, len(all))
	queues := make([]Queue, 0, len(all))
	for i := range all {
		q := queueOf(&all[i])
		c := counted{published: all[i].NextSequence}
		for _, s := range all[i].Subscriptions {
			c.done += all[i].NextSequence - min(s.Backlog, all[i].NextSequence)
		}
		after[all[i].ID] = c
		if old, ok := l.before[all[i].ID]; ok && passed > 0 {
			published, done := rise(old.published, c.published)/passed, rise(old.done, c.done)/passed
			q.Activity = &Activity{Published: &published, Acknowledged: &done}
		}
		queues = append(queues, q)
	}
	l.at, l.before = now, after
	return queues
}

func rise(before, now uint64) float64 {
	if now < before {
		return 0
	}
	return float64(now - before)
}

func queueOf(q *client.Queue) Queue {
	j := Queue{
		Name: q.Name, Messages: q.Messages, Bytes: q.Bytes, Delayed: q.Delayed,
		Subscriptions: make([]Subscription, 0, len(q.Subscriptions)), facts: factsOf(q),
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

// factsOf are what is set for a queue and what happened to its messages, without what is not.
func factsOf(q *client.Queue) []fact {
	facts := []fact{{"published", out.Count(q.NextSequence-1) + " since it was made"}}
	add := func(is bool, name, format string, args ...any) {
		if is {
			facts = append(facts, fact{name, fmt.Sprintf(format, args...)})
		}
	}
	c := &q.Config
	add(c.MaxMessages > 0, "limit", "%s", out.Plural(c.MaxMessages, "message"))
	add(c.MaxBytes > 0, "limit", "%s", out.Bytes(c.MaxBytes))
	add(c.MaxDeliveries > 0, "deliveries", "%d at most", c.MaxDeliveries)
	add(c.DeadLetter != "", "dead letters", "go to %s", c.DeadLetter)
	add(q.Delayed > 0, "delayed", "%s", out.Plural(q.Delayed, "message"))
	add(q.Dropped > 0, "dropped", "%s", out.Plural(q.Dropped, "message"))
	add(q.Expired > 0, "expired", "%s", out.Plural(q.Expired, "message"))
	for i := range q.Forwards {
		add(true, "forwards to", "%s", q.Forwards[i].To)
	}
	return facts
}

// sortQueues puts queues in the order that is wanted: the largest first, or of names the first; ties by name.
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
