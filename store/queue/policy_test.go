// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/txn"
)

func (d *driver) policy(pattern string, p txn.QueuePolicy) {
	d.t.Helper()
	d.do(func(b *txn.Builder) { b.PutPolicy(pattern, p) })
}

// A policy does not set a dead-letter queue on that queue itself, nor on queues to which that queue dead-letters
// (INV-25). It does not discard the messages of these queues either.
func TestPolicyDeadLetterCycle(t *testing.T) {
	d := newDriver(t)
	dead, more := d.queue("orders.dead", txn.Config{}, "s"), d.queue("orders.more", txn.Config{}, "s")
	orders := d.queue("orders.eu", txn.Config{}, "s")
	d.policy("orders.*", txn.QueuePolicy{Defaults: txn.Config{DeadLetter: dead.id, MaxDeliveries: 5, TTL: 1000}})
	require.Equal(t, txn.Config{DeadLetter: dead.id, MaxDeliveries: 5, TTL: 1000}, orders.Config())
	require.Equal(t, txn.Config{TTL: 1000}, dead.Config(), "dead letters return to their queue")
	require.Equal(t, dead.id, more.Config().DeadLetter)

	d.do(func(b *txn.Builder) {
		b.AlterSubscription(dead.id, 1, txn.SubscriptionChange{
			Fields: txn.FieldDeadLetter, Options: txn.SubscriptionOptions{
				Own: txn.FieldDeadLetter, Policy: txn.Config{DeadLetter: more.id},
			},
		})
	})
	require.Equal(t, txn.Config{TTL: 1000}, more.Config(), "dead letters of dead letters return to their queue")
	r := d.apply(nil, func(b *txn.Builder) { b.AlterQueue(more.id, txn.Config{DeadLetter: dead.id}, txn.FieldDeadLetter) })
	require.Equal(t, txn.ErrDeadLetterCycle, r.Code)
	require.Empty(t, d.s.Check())
	d.do(func(b *txn.Builder) { b.DeleteSubscription(dead.id, 1) })
	require.Equal(t, dead.id, more.Config().DeadLetter)

	r = d.apply(nil, func(b *txn.Builder) { b.DeleteQueue(dead.id, false) })
	require.Equal(t, txn.ErrQueueInUse, r.Code)
	d.do(func(b *txn.Builder) { b.DeletePolicy("orders.*") })
	require.Equal(t, txn.Config{}, orders.Config())
	d.do(func(b *txn.Builder) { b.DeleteQueue(dead.id, false) })
	require.Empty(t, d.s.Check())
}

// The policy with the highest priority applies; on a tie, the first pattern. Defaults and limits are separate.
func TestPolicyPrecedence(t *testing.T) {
	d := newDriver(t)
	d.policy("*", txn.QueuePolicy{Limits: txn.Config{MaxMessages: 100}})
	d.policy("a*", txn.QueuePolicy{Defaults: txn.Config{TTL: 1}})
	d.policy("?b", txn.QueuePolicy{Defaults: txn.Config{Delay: 2}})
	d.policy("*c", txn.QueuePolicy{Priority: 1, Defaults: txn.Config{MaxMessages: 3, RetentionAge: 9}})
	for name, want := range map[string]txn.Config{
		"x":  {MaxMessages: 100},
		"ax": {MaxMessages: 100, TTL: 1},
		"ab": {MaxMessages: 100, Delay: 2},
		"ac": {MaxMessages: 3, RetentionAge: 9},
	} {
		require.Equal(t, want, d.queue(name, txn.Config{}, "s").Config(), name)
	}
	ac := d.s.QueueByName("ac")
	_, retained := ac.Retained()
	require.True(t, retained)
	require.Equal(t, Sources{Defaults: "*c", Limits: "*"}, d.s.Sources(ac))
	require.Equal(t, Sources{Limits: "*", Limited: txn.FieldMaxMessages}, d.s.Sources(d.s.QueueByName("x")))
	require.Same(t, d.s.QueueByName("x").config, d.queue("y", txn.Config{}).config, "settings are shared")

	d.do(func(b *txn.Builder) { b.AlterQueueWith(ac.id, txn.Config{}, txn.Retention, txn.Retention) })
	_, retained = ac.Retained()
	require.False(t, retained, "an explicit 0 overrides the policy")
	d.do(func(b *txn.Builder) { b.AlterQueue(ac.id, txn.Config{}, txn.Retention) })
	require.Equal(t, uint64(9), ac.Config().RetentionAge, "the options were reset")
	require.Empty(t, d.s.Check())
}

func TestPolicyIsRefused(t *testing.T) {
	d := newDriver(t)
	d.s.limits.policies = 1
	r := d.apply(nil, func(b *txn.Builder) { b.DeletePolicy("a") })
	require.Equal(t, txn.ErrPolicyNotFound, r.Code)
	r = d.apply(nil, func(b *txn.Builder) { b.PutPolicy("a", txn.QueuePolicy{Defaults: txn.Config{DeadLetter: 7}}) })
	require.Equal(t, txn.ErrQueueNotFound, r.Code)
	d.policy("a", txn.QueuePolicy{Defaults: txn.Config{TTL: 1}})
	d.policy("a", txn.QueuePolicy{Defaults: txn.Config{TTL: 2}})
	r = d.apply(nil, func(b *txn.Builder) { b.PutPolicy("b", txn.QueuePolicy{Defaults: txn.Config{TTL: 1}}) })
	require.Equal(t, txn.ErrTooManyPolicies, r.Code)
}

// The overflow policy dead-letter-head can use the dead-letter queue of a policy. Without a dead-letter queue, it
// is rejected.
func TestPolicyOverflow(t *testing.T) {
	d := newDriver(t)
	full := txn.Config{MaxMessages: 1, Overflow: txn.OverflowDeadLetterHead}
	create := func(b *txn.Builder) { b.CreateQueue("q", full, "s") }
	require.Equal(t, txn.ErrNoDeadLetter, d.apply(nil, create).Code)
	dead := d.queue("dead", txn.Config{}, "s")
	d.policy("q", txn.QueuePolicy{Defaults: txn.Config{DeadLetter: dead.id}})
	d.do(create)
	q := d.s.QueueByName("q")
	require.Equal(t, txn.OverflowDeadLetterHead, q.Config().Overflow)
	d.do(func(b *txn.Builder) { b.DeletePolicy("q") })
	require.Equal(t, txn.OverflowReject, q.Config().Overflow)
	require.Empty(t, d.s.Check())
}

// BenchmarkPutPolicy changes a policy that applies to all queues. The other policies have a higher priority and the
// prefix of the queues, but match none of them.
func BenchmarkPutPolicy(b *testing.B) {
	for _, c := range []struct{ queues, policies int }{{10_000, 10}, {10_000, MaxPolicies}, {100_000, 10}} {
		b.Run(fmt.Sprintf("queues=%d/policies=%d", c.queues, c.policies), func(b *testing.B) {
			d := newDriver(b)
			for i := range c.queues {
				d.queue(fmt.Sprintf("orders.%06d", i), txn.Config{}, "s")
			}
			for i := range c.policies - 1 {
				d.policy(fmt.Sprintf("orders.*x%d", i), txn.QueuePolicy{Priority: 1, Defaults: txn.Config{TTL: 1}})
			}
			for ttl := uint64(1); b.Loop(); ttl++ {
				d.policy("*", txn.QueuePolicy{Defaults: txn.Config{TTL: ttl}})
				d.s.TakeTouched(nil)
			}
		})
	}
}
