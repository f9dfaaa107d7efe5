// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/server/observe/nodestatus"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/repair"
)

const namespace = "lockstep"

// oldestLimit limits the time that one scrape spends on reading the oldest messages of queues.
const oldestLimit = 500 * time.Millisecond

type snapshot struct {
	node       nodestatus.Node
	extra      Extra
	store      store.Stats
	corruption repair.Status
	queues     []queueSnapshot
}

type queueSnapshot struct {
	query.QueueInfo

	age      time.Duration
	ageKnown bool
	inFlight []time.Duration // OldestInFlight of each subscription
}

func (s *snapshot) isRaised(k conditions.Kind) bool {
	return slices.ContainsFunc(s.node.Conditions, func(c conditions.Condition) bool { return c.Definition.Kind == k })
}

type collector struct {
	o        *Options
	store    *store.Store
	families []family
	descs    []*prometheus.Desc
	up       *prometheus.Desc

	mu     sync.Mutex // guards the fields below
	oldest map[uint64]oldestMessage
}

type oldestMessage struct {
	sequence uint64
	accepted time.Time
}

func newCollector(o *Options) *collector {
	c := &collector{
		o: o, store: o.Store, families: families(), oldest: make(map[uint64]oldestMessage),
		up: prometheus.NewDesc(storeUsable().Name, storeUsable().Help, nil, nil),
	}
	for i := range c.families {
		f := &c.families[i]
		c.descs = append(c.descs, prometheus.NewDesc(f.Name, f.Help, f.Labels, nil))
	}
	return c
}

func storeUsable() Metric {
	return Metric{
		Name: namespace + "_store_usable", Type: Gauge,
		Help: "0 if the store failed and the node is about to exit.",
	}
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		ch <- d
	}
	ch <- c.up
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	stats, err := c.store.Stats()
	ch <- prometheus.MustNewConstMetric(c.up, prometheus.GaugeValue, boolValue(err == nil))
	if err != nil {
		return // the log contains the failure of the store
	}
	s := snapshot{
		node: c.o.State(), extra: c.o.Extra(), store: stats,
		corruption: c.store.Repair().Status(),
		queues:     c.exportedQueues(),
	}
	for i := range c.families {
		kind := prometheus.GaugeValue
		if c.families[i].Type == Counter {
			kind = prometheus.CounterValue
		}
		c.families[i].read(&s, func(v float64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(c.descs[i], kind, v, labels...)
		})
	}
}

// exportedQueues returns the queues to export. The same limit applies to the number of subscriptions of each queue,
// of which those with the largest backlog are selected.
func (c *collector) exportedQueues() []queueSnapshot {
	ctx, cancel := context.WithTimeout(context.Background(), oldestLimit)
	defer cancel()
	c.mu.Lock()
	defer c.mu.Unlock()
	found := query.Busiest(c.store, c.o.Queues)
	out := make([]queueSnapshot, 0, len(found))
	kept := make(map[uint64]oldestMessage, len(found))
	for _, q := range found {
		if len(q.Subscriptions) > c.o.Queues {
			slices.SortFunc(q.Subscriptions, func(a, b query.SubscriptionInfo) int {
				return cmp.Or(cmp.Compare(b.Backlog, a.Backlog), cmp.Compare(a.ID, b.ID))
			})
			q.Subscriptions = q.Subscriptions[:c.o.Queues]
		}
		s := queueSnapshot{
			QueueInfo: q, ageKnown: q.Messages == 0, inFlight: make([]time.Duration, len(q.Subscriptions)),
		}
		for i := range q.Subscriptions {
			if c.o.OldestInFlight == nil {
				break
			}
			s.inFlight[i] = c.o.OldestInFlight(q.ID, q.Subscriptions[i].ID)
		}
		if old, ok := c.oldestMessage(ctx, &q); ok {
			s.age, s.ageKnown = max(time.Since(old.accepted), 0), true
			kept[q.ID] = old
		}
		out = append(out, s)
	}
	c.oldest = kept
	return out
}

func (c *collector) oldestMessage(ctx context.Context, q *query.QueueInfo) (oldestMessage, bool) {
	if q.Messages == 0 {
		return oldestMessage{}, false
	}
	first, ok := query.OldestSequence(c.store, q.ID)
	if !ok {
		return oldestMessage{}, false
	}
	if known, ok := c.oldest[q.ID]; ok && known.sequence == first {
		return known, true
	}
	at, ok := query.AcceptedAt(ctx, c.store, q.ID, first)
	return oldestMessage{sequence: first, accepted: at}, ok
}
