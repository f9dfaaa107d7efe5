// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

func featureKinds() []featureKind {
	return []featureKind{
		forwardKind(), filterKind(), priorityKind(), retentionKind(), preparedKind(), delayKind(), dedupKind(),
	}
}

func subscribed(config admin.QueueConfig, subs ...string) admin.CreateQueueOptions {
	return admin.CreateQueueOptions{Config: config, Subscriptions: subs}
}

// once checks the number of copies of a message: 1 if its publish was acknowledged, 0 if it was rejected, and 0 or 1
// if its outcome is unknown.
func (f *feature) once(location string, id historycheck.ID, times int) {
	m := f.sent[id]
	switch {
	case times > 1:
		f.broken(historycheck.RuleDuplicate, "message %v is stored %d times in %s", id, times, location)
	case times == 0 && m.outcome == historycheck.Acked:
		f.broken(historycheck.RuleLost, "message %v was acknowledged, but is not in %s", id, location)
	case times > 0 && m.outcome == historycheck.Refused:
		f.broken(historycheck.RuleRefused, "message %v was rejected (%v), but is in %s", id, m.err, location)
	}
}

// forwardKind copies all messages to one queue, and moves some to another. A message is in all of its target queues or
// in none.
func forwardKind() featureKind {
	return featureKind{
		name: "forward", into: "in",
		queues: map[string]admin.CreateQueueOptions{
			"in":    subscribed(admin.QueueConfig{}, SubAudit),
			"copy":  subscribed(admin.QueueConfig{}, SubAudit),
			"moved": subscribed(admin.QueueConfig{}, SubAudit),
		},
		setup: func(ctx context.Context, f *feature) error {
			_, err := admin.New(f.client).SetForwards(ctx, f.queue("in"), []admin.Forward{
				{To: f.queue("copy")}, {To: f.queue("moved"), Move: true, Filter: `subject == "move"`},
			})
			return err
		},
		message: func(f *feature) client.Message {
			return client.Message{Subject: []string{"copy", "move"}[f.rng.IntN(2)]}
		},
		check: checkForwards,
	}
}

func checkForwards(ctx context.Context, f *feature) error {
	var in [3]map[historycheck.ID]int
	for i, name := range []string{"in", "copy", "moved"} {
		var err error
		if in[i], err = f.stored(ctx, name); err != nil {
			return err
		}
	}
	for id, m := range f.sent {
		f.once("the copies", id, in[1][id])
		remain, moved := in[1][id], 0
		if m.Subject == "move" {
			remain, moved = moved, remain
		}
		if in[0][id] != remain || in[2][id] != moved {
			f.broken(historycheck.RulePartly, "message %v (%s): stored %d times, copied %d times, moved %d times", id,
				m.Subject, in[0][id], in[1][id], in[2][id])
		}
	}
	return nil
}

// filterKind has a subscription with a filter, which receives exactly the matching messages.
func filterKind() featureKind {
	return featureKind{
		name: "filter", into: "in",
		queues: map[string]admin.CreateQueueOptions{"in": subscribed(admin.QueueConfig{}, SubAudit)},
		setup: func(ctx context.Context, f *feature) error {
			_, _, err := admin.New(f.client).CreateSubscription(ctx, f.queue("in"), "even",
				admin.SubscriptionOptions{Filter: `subject == "even" && properties.n > 0`})
			return err
		},
		message: func(f *feature) client.Message {
			return client.Message{
				Subject: []string{"odd", "even"}[f.rng.IntN(2)], Values: map[string]any{"n": int64(f.rng.IntN(4))},
			}
		},
		sinks: [][2]string{{"in", "even"}},
		check: func(ctx context.Context, f *feature) error {
			all, err := f.stored(ctx, "in")
			if err != nil {
				return err
			}
			for id, m := range f.sent {
				f.once("the queue", id, all[id])
				matches, got := m.Subject == "even" && m.Values["n"].(int64) > 0, f.got["in/even"][id] > 0
				if got != (matches && all[id] > 0) {
					f.broken(historycheck.RuleUndelivered, "message %v: stored %d times, matches: %v, delivered: %v", id, all[id],
						matches, got)
				}
			}
			return nil
		},
	}
}

// priorityKind uses priorities: all messages are delivered, and a queue without publishers delivers them in order of
// priority.
func priorityKind() featureKind {
	return featureKind{
		name: "priority", into: "in",
		queues: map[string]admin.CreateQueueOptions{
			"in": subscribed(admin.QueueConfig{Priorities: true}, SubWork, SubAudit),
		},
		message: func(f *feature) client.Message {
			return client.Message{Priority: new(uint8(f.rng.IntN(10)))}
		},
		sinks: [][2]string{{"in", SubWork}},
		check: func(ctx context.Context, f *feature) error {
			all, err := f.stored(ctx, "in")
			if err != nil {
				return err
			}
			for id := range f.sent {
				f.once("the queue", id, all[id])
				if all[id] > 0 && f.got["in/"+SubWork][id] == 0 {
					f.broken(historycheck.RuleUndelivered, "message %v was not delivered", id)
				}
			}
			return checkPriorities(ctx, f, len(all))
		},
	}
}

// checkPriorities consumes the n messages that the audit subscription has retained, and checks that they are ordered by
// priority, and by sequence within a priority.
func checkPriorities(ctx context.Context, f *feature, n int) error {
	c, err := f.client.Consume(ctx, f.queue("in"), client.ConsumerOptions{Subscription: SubAudit, Prefetch: n + 1})
	if err != nil {
		return fmt.Errorf("feature %s: %w", f.name, err)
	}
	defer func() { _ = c.Close() }()
	last, sequence := uint8(9), uint64(0)
	for range n {
		d, err := c.Receive(ctx)
		if err != nil {
			return fmt.Errorf("feature %s: %w", f.name, err)
		}
		switch p := *d.Priority; {
		case p > last:
			f.broken(historycheck.RuleOrder, "priority %d (sequence %d) after %d (sequence %d)", p, d.Sequence, last, sequence)
		case p < last:
			last, sequence = p, d.Sequence
		case d.Sequence <= sequence:
			f.broken(historycheck.RuleOrder, "sequence %d after %d, both of priority %d", d.Sequence, sequence, p)
		default:
			sequence = d.Sequence
		}
	}
	return nil
}

// dedupKind publishes each message several times, as separate requests with one message ID. The message must be
// stored once.
func dedupKind() featureKind {
	return featureKind{
		name: "dedup", into: "in",
		queues: map[string]admin.CreateQueueOptions{
			// The window is longer than any jump of a clock that a test injects.
			"in": subscribed(admin.QueueConfig{DedupWindow: 90 * 24 * time.Hour}, SubAudit),
		},
		message: func(f *feature) client.Message { return client.Message{MessageID: fmt.Sprint(f.n + 1)} },
		act:     func(f *feature) { f.resend(historycheck.ID{Producer: f.id, N: 1 + f.rng.Uint64N(f.n)}) },
		settle: func(_ context.Context, f *feature) error {
			for n := range f.n {
				f.resend(historycheck.ID{Producer: f.id, N: n + 1})
			}
			return nil
		},
		check: func(ctx context.Context, f *feature) error {
			all, err := f.stored(ctx, "in")
			if err != nil {
				return err
			}
			for id := range f.sent {
				f.once("the queue", id, all[id])
			}
			return nil
		},
	}
}

// resend publishes a message again, as a new request, and checks that an acknowledged message is not stored again.
func (f *feature) resend(id historycheck.ID) {
	f.mu.Lock()
	m, ok := f.sent[id]
	f.mu.Unlock()
	if !ok {
		return
	}
	message := m.Message
	message.Body = historycheck.Body(id, 0)
	ctx, cancel := context.WithTimeout(context.Background(), featurePublish)
	defer cancel()
	r, err := f.client.Publish(ctx, f.queue(f.into), message)
	switch {
	case err == nil && m.outcome == historycheck.Acked && !r.Duplicate:
		f.broken(historycheck.RuleDuplicate, "message %v was acknowledged, but is stored again as %d", id, r.Sequence)
	case err == nil:
		m.outcome = historycheck.Acked
	case m.outcome == historycheck.Refused:
		m.outcome = verdict(err)
	}
	m.err = errors.Join(m.err, err)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent[id] = m
}

// retentionKind retains acknowledged messages. At the end, all of them are redelivered in order.
func retentionKind() featureKind {
	return featureKind{
		name: "retention", into: "in",
		queues: map[string]admin.CreateQueueOptions{
			"in": subscribed(admin.QueueConfig{RetentionMessages: 1 << 30}, SubWork),
		},
		message: func(*feature) client.Message { return client.Message{} },
		sinks:   [][2]string{{"in", SubWork}},
		check: func(ctx context.Context, f *feature) error {
			all, err := f.stored(ctx, "in")
			if err != nil {
				return err
			}
			for id := range f.sent {
				f.once("the queue", id, all[id])
			}
			return checkReplay(ctx, f, all)
		},
	}
}

// checkReplay seeks the subscription to the start, and checks that all messages are redelivered in order.
func checkReplay(ctx context.Context, f *feature, all map[historycheck.ID]int) error {
	if _, err := admin.New(f.client).Seek(ctx, f.queue("in"), SubWork, admin.Earliest()); err != nil {
		return fmt.Errorf("feature %s: %w", f.name, err)
	}
	c, err := f.client.Consume(ctx, f.queue("in"), client.ConsumerOptions{Subscription: SubWork, Prefetch: len(all) + 1})
	if err != nil {
		return fmt.Errorf("feature %s: %w", f.name, err)
	}
	defer func() { _ = c.Close() }()
	last := uint64(0)
	for range all {
		d, err := c.Receive(ctx)
		if err != nil {
			return fmt.Errorf("feature %s: replay: %w", f.name, err)
		}
		if d.Sequence <= last {
			f.broken(historycheck.RuleOrder, "replay: sequence %d after %d", d.Sequence, last)
		}
		last = d.Sequence
		id, err := historycheck.ParseBody(d.Body)
		if err != nil || all[id] == 0 {
			f.broken(historycheck.RulePhantom, "replay: sequence %d: message %v: %v", d.Sequence, id, err)
		}
	}
	return nil
}

// delayKind delays messages, some of which expire and are dead-lettered. At the end, each acknowledged message must
// be delivered, dead-lettered or still delayed, and must be dead-lettered at most once.
func delayKind() featureKind {
	return featureKind{
		name: "delay", into: "in",
		queues: map[string]admin.CreateQueueOptions{
			"in":      subscribed(admin.QueueConfig{DeadLetter: "expired", DeadLetterExpired: true}, SubWork),
			"expired": subscribed(admin.QueueConfig{}, SubAudit),
		},
		message: func(f *feature) client.Message {
			m := client.Message{Delay: time.Duration(1+f.rng.IntN(300)) * time.Millisecond}
			if f.rng.IntN(3) == 0 {
				m.TTL = time.Duration(1+f.rng.IntN(400)) * time.Millisecond
			}
			return m
		},
		sinks: [][2]string{{"in", SubWork}}, canWait: true,
		check: func(ctx context.Context, f *feature) error {
			waiting, err := f.stored(ctx, "in") // read before the dead letters, because messages may be moved concurrently
			if err != nil {
				return err
			}
			dead, err := f.stored(ctx, "expired")
			if err != nil {
				return err
			}
			for id, m := range f.sent {
				got := f.got["in/"+SubWork][id] + waiting[id]
				switch {
				case dead[id] > 1:
					f.broken(historycheck.RuleDuplicate, "message %v was dead-lettered %d times", id, dead[id])
				case dead[id] > 0 && m.TTL == 0:
					f.broken(historycheck.RulePhantom, "message %v does not expire, but was dead-lettered", id)
				case dead[id]+got == 0 && m.outcome == historycheck.Acked:
					f.broken(historycheck.RuleLost, "message %v (delay %v, ttl %v) was neither delivered nor expired", id,
						m.Delay, m.TTL)
				case dead[id]+got > 0 && m.outcome == historycheck.Refused:
					f.broken(historycheck.RuleRefused, "message %v was rejected (%v), but is stored", id, m.err)
				}
			}
			return nil
		},
	}
}
