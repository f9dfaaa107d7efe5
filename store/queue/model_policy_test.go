// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

func (m *model) changePolicy(b *txn.Builder, want *txn.Result) {
	pattern := []string{"*", "q?", "q1", "q*", "*3", "x*"}[m.rng.IntN(6)]
	want.Ops = []txn.OpResult{{}}
	if m.rng.IntN(4) == 0 {
		b.DeletePolicy(pattern)
		if _, exists := m.policies[pattern]; !exists {
			want.Code, want.Op, want.Ops = txn.ErrPolicyNotFound, 0, nil
		}
		delete(m.policies, pattern)
		return
	}
	p := txn.QueuePolicy{Priority: m.rng.Uint64N(3)}
	if m.rng.IntN(3) > 0 {
		some := m.someConfig(txn.Config{MaxMessages: m.rng.Uint64N(2) * 5000})
		p.Defaults = txn.Config{}.With(some, txn.DefaultFields)
		if p.Defaults.DeadLetter == 0 && p.Defaults.Overflow == txn.OverflowDeadLetterHead {
			p.Defaults.Overflow = txn.OverflowDropHead
		}
	}
	if p.Defaults == (txn.Config{}) || m.rng.IntN(2) == 0 {
		p.Limits = txn.Config{MaxMessages: 1 + m.rng.Uint64N(6000), MaxBytes: m.rng.Uint64N(2) << 39}
		p.Limits.TTL, p.Limits.MaxDeliveries = m.rng.Uint64N(60), m.rng.Uint64N(3)
	}
	b.PutPolicy(pattern, p)
	if id := p.Defaults.DeadLetter; id != 0 && m.queues[id] == nil {
		want.Code, want.Op, want.Ops = txn.ErrQueueNotFound, 0, nil
		return
	}
	m.policies[pattern] = p
}

// policyOf returns the policy with the highest priority that matches the name and for which sets returns true.
func (m *model) policyOf(name string, sets func(p *txn.QueuePolicy) bool) (best txn.QueuePolicy) {
	pattern := ""
	for at, p := range m.policies {
		if !txn.MatchGlob(at, name) || !sets(&p) {
			continue
		}
		if pattern == "" || p.Priority > best.Priority || p.Priority == best.Priority && at < pattern {
			pattern, best = at, p
		}
	}
	return best
}

func (m *model) limitsOf(name string) txn.Config {
	return m.policyOf(name, func(p *txn.QueuePolicy) bool { return p.Limits != txn.Config{} }).Limits
}

// effective returns the effective configuration of a queue. c is the configuration set on the queue itself, and fields
// the mask of the fields that are set.
func (m *model) effective(id uint64, name string, c txn.Config, fields txn.ConfigMask) txn.Config {
	defaults := m.policyOf(name, func(p *txn.QueuePolicy) bool { return p.Defaults != txn.Config{} }).Defaults
	limits := m.limitsOf(name)
	if m.isEnd(id) && defaults.DeadLetter != 0 && fields&txn.FieldDeadLetter == 0 {
		defaults.DeadLetter, defaults.DeadLetterExpired, defaults.MaxDeliveries = 0, 0, 0
	}
	byteLimit := false
	for i := range 21 {
		field := txn.ConfigMask(1) << i
		v, _ := c.Field(i)
		if d, _ := defaults.Field(i); *d != 0 && fields&field == 0 {
			*v = *d
			byteLimit = byteLimit || field == txn.FieldMaxBytes || field == txn.FieldRetentionBytes
		}
		if l, _ := limits.Field(i); *l != 0 && (*v == 0 || *v > *l) {
			*v = *l
			byteLimit = byteLimit || field == txn.FieldMaxBytes
		}
	}
	if byteLimit {
		c.ExactBytes = 1
	}
	if c.DeadLetter == 0 && c.Overflow == txn.OverflowDeadLetterHead {
		c.Overflow = txn.OverflowReject
	}
	return c
}

// isEnd reports whether a queue can receive messages that another queue dead-letters because of a policy.
func (m *model) isEnd(id uint64) bool {
	for _, p := range m.policies {
		if m.leads(p.Defaults.DeadLetter, id) {
			return true
		}
	}
	return false
}

func (m *model) leads(from, to uint64) bool {
	q := m.queues[from]
	if q == nil || from == to {
		return q != nil
	}
	for _, s := range q.subs {
		if m.leads(s.options.Policy.DeadLetter, to) {
			return true
		}
	}
	return m.leads(q.own.DeadLetter, to)
}

func (m *model) applyPolicies() {
	for _, q := range m.queues {
		config := m.effective(q.id, q.name, q.own, q.fields)
		if config != q.config {
			q.endWindow(m.now)
		}
		q.config = config
		q.removeIDs()
		q.setRetention()
		q.keepSizes()
	}
}

func (m *model) checkPolicies(t *testing.T, s *State) {
	t.Helper()
	got := map[string]txn.QueuePolicy{}
	for _, p := range s.Policies() {
		got[p.Pattern] = p.QueuePolicy
	}
	require.Equal(t, m.policies, got)
	for q := range s.Queues {
		require.NotContains(t, deadLettersFrom(s, q, nil), q.id, "dead letters of queue %s return to it", q.name)
		most := m.limitsOf(q.name).MaxDeliveries
		for sub := range q.Subs {
			if n := sub.Config().MaxDeliveries; most != 0 {
				require.True(t, n > 0 && n <= most, "subscription overrides a limit")
			}
		}
	}
}

// deadLettersFrom returns all queues that messages of q can be moved to.
func deadLettersFrom(s *State, q *Queue, seen []uint64) []uint64 {
	for id := range q.deadLetters {
		if len(seen) > 100 {
			break
		}
		seen = deadLettersFrom(s, s.Queue(id), append(seen, id))
	}
	return seen
}
