// SPDX-License-Identifier: Apache-2.0

// Package query implements read-only queries of the applied state of a store: queues, subscriptions, messages and
// prepared transactions. A result describes the state at one LSN, unless stated otherwise.
package query

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// QueueInfo describes a queue.
type QueueInfo struct {
	ID           uint64
	Name         string
	Config       txn.Config
	DeadLetter   string // name of queue Config.DeadLetter; empty if none
	NextSequence uint64
	// Messages is the number of live messages, and Bytes is their size.
	Messages, Bytes uint64
	Delayed         uint64
	// Dropped counts messages that were discarded because no dead-letter queue is configured, once per subscription.
	// Expired counts expired messages that were not moved to a dead-letter queue. Both counters start when the queue is
	// created, and continue when it moves to another pair.
	Dropped, Expired uint64
	Digest           uint64
	// Epoch is the ownership epoch; 0 if the pair is not a member of a fleet.
	Epoch uint64
	// Subscriptions are ordered by number.
	Subscriptions []SubscriptionInfo
	Forwards      []ForwardInfo
	Pause         txn.Pause
	// MessageIDs is the number of message IDs retained for Config.DedupWindow. Duplicates is the number of discarded
	// duplicates (queue.Queue.MessageIDs).
	MessageIDs, Duplicates uint64
	// Own contains the options of Config that are set on the queue itself, not by a policy. It is nil if no policy
	// applies and no field is explicitly 0. Config then contains only options set on the queue itself.
	Own *OwnConfig
}

// OwnConfig contains the options of a configuration that are set on the queue itself, not by a policy.
type OwnConfig struct {
	Config     txn.Config
	Fields     txn.ConfigMask
	DeadLetter string // name of queue Config.DeadLetter; empty if none
	Sources    queue.Sources
}

// PolicyInfo describes a policy.
type PolicyInfo struct {
	queue.Policy

	DeadLetter string // name of queue Defaults.DeadLetter; empty if none
}

// Policies returns the policies, ordered by pattern.
func Policies(s *store.Store) (policies []PolicyInfo) {
	s.View(func(state *queue.State) {
		for _, p := range state.Policies() {
			policies = append(policies, PolicyInfo{Policy: p, DeadLetter: nameOf(state, p.Defaults.DeadLetter)})
		}
	})
	return policies
}

// ForwardInfo is a forwarding rule of a queue.
type ForwardInfo struct {
	// To is the name of the target queue.
	To   string
	Move bool
	// Filter is the expression that messages must match; "" matches all messages.
	Filter string
}

// SubscriptionInfo describes a subscription.
type SubscriptionInfo struct {
	ID   uint32
	Name string
	// Floor is the sequence below which all messages are acknowledged.
	Floor uint64
	// Start is the sequence at which the subscription started, or the lowest sequence to which a seek has moved it back
	// since then.
	Start   uint64
	Backlog uint64
	// Options contains the filter and the settings that override the queue's configuration.
	Options txn.SubscriptionOptions
	// DeadLetter is the name of the queue with number Options.Policy.DeadLetter; empty if none.
	DeadLetter string
	// Pause is the pause of the subscription itself, regardless of the pause of its queue.
	Pause txn.Pause
}

// Subscription returns the subscription with the given name. It returns false if the subscription does not exist.
func (q *QueueInfo) Subscription(name string) (SubscriptionInfo, bool) {
	i := slices.IndexFunc(q.Subscriptions, func(s SubscriptionInfo) bool { return s.Name == name })
	if i < 0 {
		return SubscriptionInfo{}, false
	}
	return q.Subscriptions[i], true
}

func infoOf(state *queue.State, q *queue.Queue) QueueInfo {
	info := QueueInfo{
		ID: q.ID(), Name: q.Name(), Config: q.Config(), NextSequence: q.NextSequence(), Messages: q.Messages(),
		Bytes: q.Bytes(), Digest: q.Digest(), Subscriptions: make([]SubscriptionInfo, 0, q.SubCount()),
		Delayed: q.DelayedMessages(), Pause: q.Pause(), Epoch: state.OwnershipEpoch(q),
	}
	info.Dropped, info.Expired = q.Dropped()
	info.MessageIDs, info.Duplicates = q.MessageIDs()
	info.DeadLetter = nameOf(state, info.Config.DeadLetter)
	own := OwnConfig{Sources: state.Sources(q)}
	if own.Config, own.Fields = q.Own(); own.Sources != (queue.Sources{}) || own.Fields != info.Config.Fields() {
		own.DeadLetter = nameOf(state, own.Config.DeadLetter)
		info.Own = &own
	}
	for _, f := range q.Forwards() {
		forward := ForwardInfo{To: nameOf(state, f.Target), Move: f.Move, Filter: f.Filter}
		info.Forwards = append(info.Forwards, forward)
	}
	for s := range q.Subs {
		options := s.Options()
		info.Subscriptions = append(info.Subscriptions, SubscriptionInfo{
			ID: s.ID(), Name: s.Name(), Floor: s.Floor(), Start: s.Start(), Backlog: s.Backlog(), Options: options,
			DeadLetter: nameOf(state, options.Policy.DeadLetter), Pause: s.Pause(),
		})
	}
	return info
}

// nameOf returns the name of a queue, or "" if it does not exist.
func nameOf(state *queue.State, id uint64) string {
	if q := state.Queue(id); q != nil {
		return q.Name()
	}
	return ""
}

// viewQueue calls fn with the state and the queue, if the queue exists. fn is subject to the restrictions of
// Store.View.
func viewQueue(s *store.Store, id uint64, fn func(state *queue.State, q *queue.Queue)) {
	s.View(func(state *queue.State) {
		if q := state.Queue(id); q != nil {
			fn(state, q)
		}
	})
}

// viewSub calls fn with the subscription, if it exists. fn is subject to the restrictions of Store.View.
func viewSub(s *store.Store, id uint64, sub uint32, fn func(*queue.Sub)) {
	viewQueue(s, id, func(_ *queue.State, q *queue.Queue) {
		if of := q.Sub(sub); of != nil {
			fn(of)
		}
	})
}

// PausedQueues returns the sorted names of the queues that are paused or have a paused subscription. It returns nil
// if the store is closed or has failed.
func PausedQueues(s *store.Store) (names []string) {
	if s.Usable() != nil {
		return nil
	}
	s.View(func(state *queue.State) {
		for q := range state.Paused {
			names = append(names, q.Name())
		}
	})
	slices.Sort(names)
	return names
}

// QueueByName returns the QueueInfo of a queue. Errors: ErrNoQueue if the queue does not exist, ErrClosed,
// ErrFailed.
func QueueByName(s *store.Store, name string) (info QueueInfo, err error) {
	if err := s.Usable(); err != nil {
		return QueueInfo{}, err
	}
	s.View(func(state *queue.State) {
		if q := state.QueueByName(name); q != nil {
			info = infoOf(state, q)
		} else {
			err = fmt.Errorf("%w: queue %q", store.ErrNoQueue, name)
		}
	})
	return info, err
}

// Origin names a subscription and its dead-letter queues.
type Origin struct {
	Queue, Subscription string
	// DeadLetter is the number of the dead-letter queue that applies to the subscription. QueueDeadLetter is the number
	// of the dead-letter queue in the configuration of the subscription's queue. Each is txn.NoQueue if none is
	// configured.
	DeadLetter, QueueDeadLetter         uint64
	DeadLetterName, QueueDeadLetterName string
}

// OriginOf returns the Origin of a subscription. Errors: ErrNoQueue if the queue or the subscription does not exist,
// ErrClosed, ErrFailed.
func OriginOf(s *store.Store, id uint64, sub uint32) (o Origin, err error) {
	if err := s.Usable(); err != nil {
		return Origin{}, err
	}
	s.View(func(state *queue.State) {
		q := state.Queue(id)
		if q == nil || q.Sub(sub) == nil {
			err = fmt.Errorf("%w: queue %d, subscription %d", store.ErrNoQueue, id, sub)
			return
		}
		o = Origin{
			Queue: q.Name(), Subscription: q.Sub(sub).Name(), DeadLetter: q.Sub(sub).Config().DeadLetter,
			QueueDeadLetter: q.Config().DeadLetter,
		}
		o.DeadLetterName, o.QueueDeadLetterName = nameOf(state, o.DeadLetter), nameOf(state, o.QueueDeadLetter)
	})
	return o, err
}

// TemporaryQueue describes a queue that is deleted after a grace period without consumers.
type TemporaryQueue struct {
	ID      uint64
	Name    string
	GraceMS uint64
	// Subscriptions are the numbers of the subscriptions, in ascending order.
	Subscriptions []uint32
}

// TemporaryQueues returns the temporary queues that are not fenced, ordered by number.
func TemporaryQueues(s *store.Store) (out []TemporaryQueue) {
	s.View(func(state *queue.State) {
		queues := state.Temporary()
		out = make([]TemporaryQueue, len(queues))
		for i, q := range queues {
			out[i] = TemporaryQueue{ID: q.ID(), Name: q.Name(), GraceMS: q.Config().TemporaryGrace}
			for sub := range q.Subs {
				out[i].Subscriptions = append(out[i].Subscriptions, sub.ID())
			}
		}
	})
	return out
}

// QueueCount returns the number of queues, without incoming queues.
func QueueCount(s *store.Store) (n int) {
	s.View(func(state *queue.State) { n = state.QueueCount() })
	return n
}

// NextSequence returns the sequence of the queue's next message. ok is false if the queue does not exist or the store
// is closed or has failed.
func NextSequence(s *store.Store, id uint64) (next uint64, ok bool) {
	if s.Usable() != nil {
		return 0, false
	}
	viewQueue(s, id, func(_ *queue.State, q *queue.Queue) { next, ok = q.NextSequence(), true })
	return next, ok
}

// SequenceRange returns the sequences of the oldest available message and of the next message of a queue. A message
// is available if it is retained or if at least one subscription has not acknowledged it. Without such a message,
// first equals next. ok is as for NextSequence.
func SequenceRange(s *store.Store, id uint64) (first, next uint64, ok bool) {
	if s.Usable() != nil {
		return 0, 0, false
	}
	viewQueue(s, id, func(_ *queue.State, q *queue.Queue) { first, next, ok = q.NextAlive(1), q.NextSequence(), true })
	return first, next, ok
}

// QueueRange selects queues by name.
type QueueRange struct {
	// Prefix selects queues with a name that begins with it. After, if not "", excludes this name and all names before
	// it.
	Prefix, After string
	// MaxQueues and MaxSubscriptions limit the number of queues and of their subscriptions in the result. The first
	// queue is included even if it exceeds MaxSubscriptions.
	MaxQueues, MaxSubscriptions int
}

// Queues returns the queues that r selects, in name order. more reports whether the range contains further queues.
// Errors: ErrClosed, ErrFailed.
func Queues(s *store.Store, r QueueRange) (infos []QueueInfo, more bool, err error) {
	if err := s.Usable(); err != nil {
		return nil, false, err
	}
	s.View(func(state *queue.State) {
		subscriptions := 0
		for _, q := range state.List(nil, r.Prefix, r.After, r.MaxQueues+1) {
			subscriptions += q.SubCount()
			if more = len(infos) == r.MaxQueues || len(infos) > 0 && subscriptions > r.MaxSubscriptions; more {
				return
			}
			infos = append(infos, infoOf(state, q))
		}
	})
	return infos, more, nil
}

// Busiest returns the queues with the most messages, at most limit. Of queues with equally many messages, those with
// the higher NextSequence come first. Busiest visits all queues while it holds the lock on the state.
func Busiest(s *store.Store, limit int) []QueueInfo {
	if limit <= 0 {
		return nil
	}
	order := func(a, b *queue.Queue) int {
		return cmp.Or(
			cmp.Compare(b.Messages(), a.Messages()), cmp.Compare(b.NextSequence(), a.NextSequence()),
			cmp.Compare(a.ID(), b.ID()),
		)
	}
	out := make([]QueueInfo, 0, limit)
	s.View(func(state *queue.State) {
		best := make([]*queue.Queue, 0, limit+1) // sorted
		for q := range state.Queues {
			if len(best) == limit && order(q, best[limit-1]) > 0 {
				continue
			}
			at, _ := slices.BinarySearchFunc(best, q, order)
			best = slices.Insert(best, at, q)
			best = best[:min(len(best), limit)]
		}
		for _, q := range best {
			out = append(out, infoOf(state, q))
		}
	})
	return out
}

// QueueSample contains the values of a queue that change, for comparison with an earlier sample.
type QueueSample struct {
	ID   uint64
	Name string
	// Messages and Bytes are as in QueueInfo.
	NextSequence, Messages, Bytes uint64
}

// Sample appends the current values of all queues to dst, in name order. It visits all queues while it holds the lock
// on the state.
func Sample(s *store.Store, dst []QueueSample) []QueueSample {
	s.View(func(state *queue.State) {
		for q := range state.Queues {
			dst = append(dst, QueueSample{
				ID: q.ID(), Name: q.Name(), NextSequence: q.NextSequence(), Messages: q.Messages(), Bytes: q.Bytes(),
			})
		}
	})
	return dst
}

// Samples calls yield with the current values of each queue. Unlike Sample, it releases the lock at intervals. The
// values are not a consistent snapshot. yield must not block.
func Samples(s *store.Store, yield func(QueueSample)) {
	var list []*queue.Queue
	for after, more := "", true; more; {
		s.View(func(state *queue.State) {
			list = state.List(list[:0], "", after, usageQueues)
			for _, q := range list {
				yield(QueueSample{
					ID: q.ID(), Name: q.Name(), NextSequence: q.NextSequence(), Messages: q.Messages(), Bytes: q.Bytes(),
				})
			}
			if more = len(list) == usageQueues; more {
				after = list[len(list)-1].Name()
			}
		})
	}
}

// usageQueues is the maximum number of queues that Usage, Samples and OwnedQueues visit while they hold the lock.
const usageQueues = 1000

// Usage returns the number of queues with a name that begins with prefix and for which match returns true, and the
// stored bytes of their messages. The result is not a consistent snapshot: Usage releases the lock at intervals, so
// transactions may be applied concurrently. match must not block.
func Usage(s *store.Store, prefix string, match func(name string) bool) (queues, bytes uint64) {
	var list []*queue.Queue
	for after, more := "", true; more; {
		s.View(func(state *queue.State) {
			list = state.List(list[:0], prefix, after, usageQueues)
			for _, q := range list {
				if match(q.Name()) {
					queues++
					bytes += q.Bytes()
				}
			}
			if more = len(list) == usageQueues; more {
				after = list[len(list)-1].Name()
			}
		})
	}
	return queues, bytes
}
