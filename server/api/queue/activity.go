// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
)

const (
	// sampleEvery is the minimum interval between two samples. Rates are averaged over the time between two samples.
	sampleEvery = time.Second
	// sampleMax is the maximum age of the previous sample from which rates are computed.
	sampleMax = 10 * time.Second
	// agesLimit limits the time that one request spends on reading the oldest messages of queues.
	agesLimit = 250 * time.Millisecond
)

// activity contains the sampled activity of all queues. It is updated only on request. Rates are computed from two
// samples of the same counters.
type activity struct {
	mu      sync.Mutex // guards the fields below
	session *session.Session
	at      time.Time // time of the last sample
	queues  []queueActivity
	byID    map[uint64]int // index in queues, by queue ID
	orders  map[orderKey][]int

	agesMu sync.Mutex // guards ages
	ages   map[uint64]queueAge
}

type queueActivity struct {
	query.QueueSample

	consumers uint32
	delivered uint64
	rates     bool // the three rates below are known
	published float64
	delivers  float64
	acks      float64
	acceptMS  int64 // time of the oldest message; set only for the order by age
}

type queueAge struct {
	sequence uint64
	accepted time.Time
}

// sample takes a new sample, at most once per sampleEvery. The caller must hold mu.
func (a *activity) sample(s *store.Store, session *session.Session) {
	now := time.Now()
	recently := a.session == session && now.Sub(a.at) < sampleEvery
	if recently && query.QueueCount(s) == len(a.queues) {
		return
	}
	found := query.Sample(s, make([]query.QueueSample, 0, len(a.queues)+16))
	if recently { // queues were created or deleted since the last sample
		a.follow(found)
		return
	}
	consumers := session.Consumers.Activity()
	queues, byID := make([]queueActivity, len(found)), make(map[uint64]int, len(found))
	elapsed := now.Sub(a.at)
	sameSession := a.session == session && elapsed <= sampleMax
	for i := range found {
		q := &queues[i]
		q.QueueSample = found[i]
		of := consumers[q.ID]
		q.consumers, q.delivered = of.Consumers, of.Delivered
		byID[q.ID] = i
		if before, known := a.byID[q.ID]; known && sameSession {
			q.compare(&a.queues[before], elapsed.Seconds())
		}
	}
	a.session, a.at, a.queues, a.byID, a.orders = session, now, queues, byID, make(map[orderKey][]int)
}

// follow adds the queues created since the last sample, and removes the deleted queues. The caller must hold mu.
func (a *activity) follow(found []query.QueueSample) {
	queues, byID := make([]queueActivity, len(found)), make(map[uint64]int, len(found))
	for i := range found {
		queues[i].QueueSample = found[i]
		if known, was := a.byID[found[i].ID]; was {
			queues[i] = a.queues[known]
		}
		byID[found[i].ID] = i
	}
	a.queues, a.byID, a.orders = queues, byID, make(map[orderKey][]int)
}

func (q *queueActivity) compare(before *queueActivity, seconds float64) {
	per := func(n uint64) float64 { return float64(n) / seconds }
	published := q.NextSequence - before.NextSequence // never negative, because NextSequence never decreases
	q.rates, q.published = true, per(published)
	if had := before.Messages + published; had > q.Messages {
		q.acks = per(had - q.Messages)
	}
	if q.delivered > before.delivered {
		q.delivers = per(q.delivered - before.delivered)
	}
}

// of returns the rates of a queue. Unknown rates are unset. The caller must hold mu.
func (a *activity) of(id uint64) *pb.QueueActivity {
	out := &pb.QueueActivity{}
	at, known := a.byID[id]
	if !known {
		return out
	}
	if q := &a.queues[at]; q.rates {
		out.PublishedPerSecond, out.DeliveredPerSecond = new(q.published), new(q.delivers)
		out.AcknowledgedPerSecond = new(q.acks)
	}
	return out
}

func (s *Service) describeActivity(ctx context.Context, session *session.Session, queues []*pb.Queue) {
	a := &s.activity
	a.mu.Lock()
	a.sample(s.store, session)
	for _, q := range queues {
		q.Activity = a.of(q.GetId())
		for _, sub := range q.GetSubscriptions() {
			q.Activity.Consumers += sub.GetConsumers()
		}
	}
	a.mu.Unlock()
	deadline := time.Now().Add(agesLimit)
	a.agesMu.Lock()
	defer a.agesMu.Unlock()
	for _, q := range queues {
		if at, known := a.oldest(ctx, s.store, q.GetId(), deadline); known && !at.IsZero() {
			q.Activity.OldestAt = timestamppb.New(at)
		}
	}
}

// oldest returns the time at which the oldest message of a queue was accepted. It returns the zero time for an empty
// queue. known is false if the message was not read. The caller must hold agesMu.
func (a *activity) oldest(
	ctx context.Context, s *store.Store, id uint64, deadline time.Time,
) (accepted time.Time, known bool) {
	first, ok := query.OldestSequence(s, id)
	if !ok {
		delete(a.ages, id)
		return time.Time{}, true
	}
	if age, ok := a.ages[id]; ok && age.sequence == first {
		return age.accepted, true
	}
	if ctx.Err() != nil || time.Now().After(deadline) {
		return time.Time{}, false
	}
	at, ok := query.AcceptedAt(ctx, s, id, first)
	if !ok {
		return time.Time{}, false
	}
	if a.ages == nil {
		a.ages = make(map[uint64]queueAge)
	}
	a.ages[id] = queueAge{sequence: first, accepted: at}
	return at, true
}

// evictAges removes the ages of deleted queues if there are more ages than queues. The caller must hold mu.
func (a *activity) evictAges() {
	a.agesMu.Lock()
	defer a.agesMu.Unlock()
	if len(a.ages) <= len(a.byID) {
		return
	}
	for id := range a.ages {
		if _, there := a.byID[id]; !there {
			delete(a.ages, id)
		}
	}
}
