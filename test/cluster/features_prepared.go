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

// preparedKind moves messages between queues with two-phase commit, as an external transaction coordinator would. Each
// acknowledged message must be stored in the target queue exactly once, regardless of failures between the phases.
func preparedKind() featureKind {
	p := new(coordinator)
	return featureKind{
		name: "prepared", into: "in",
		queues: map[string]admin.CreateQueueOptions{
			"in": subscribed(admin.QueueConfig{}, SubWork), "out": subscribed(admin.QueueConfig{}, SubAudit),
		},
		message: func(*feature) client.Message { return client.Message{} },
		act:     func(f *feature) { p.transfer(context.Background(), f, f.rng.IntN(4) == 0) },
		settle:  p.settle,
		check: func(ctx context.Context, f *feature) error {
			out, err := f.stored(ctx, "out")
			if err != nil {
				return err
			}
			for id := range f.sent {
				f.once("the target queue", id, out[id])
			}
			for t, err := range admin.New(f.client).ListPrepared(ctx) {
				if err != nil {
					return fmt.Errorf("feature %s: %w", f.name, err)
				}
				if p.begun[t.XID] {
					f.broken(historycheck.RuleEffects, "transaction %s was decided, but is still prepared", t.XID)
				}
			}
			return nil
		},
	}
}

// coordinator decides prepared transactions, one action at a time.
type coordinator struct {
	consumer *client.Consumer
	begun    map[string]bool // all transactions, by xid
	open     []undecided
	lost     map[string]bool // transactions that a pending attempt may still prepare, because the outcome was lost
	last     error           // of the last decision or query without a response
}

// undecided is a transaction without a confirmed decision.
type undecided struct {
	xid    string
	commit bool
	// unknownOutcome is the transaction while the outcome of its prepare is unknown, otherwise nil. Until the outcome
	// is known, a pending attempt could prepare the transaction after the decision.
	unknownOutcome *client.Txn
}

// decisionTimeout is the timeout of an action of the coordinator.
const decisionTimeout = 3 * time.Second

// transfer moves one available message. If rollBack is set, it prepares the move and then rolls it back.
func (p *coordinator) transfer(parent context.Context, f *feature, rollBack bool) {
	ctx, cancel := context.WithTimeout(parent, decisionTimeout)
	defer cancel()
	p.decideOpen(ctx, f)
	d := p.receive(ctx, f)
	if d == nil {
		return
	}
	f.delivered("in", SubWork, d.Body)
	if p.begun == nil {
		p.begun = map[string]bool{}
	}
	u := undecided{xid: fmt.Sprintf("%s%s/%d", f.w.opts.Prefix, f.name, len(p.begun)), commit: !rollBack}
	p.begun[u.xid] = true
	t := f.client.Begin().Publish(f.queue("out"), client.Message{Body: d.Body}).Ack(d)
	err := t.Prepare(ctx, u.xid)
	switch {
	case errors.Is(err, client.ErrOutcomeUnknown):
		u.commit, u.unknownOutcome = false, t
	case errors.Is(err, client.ErrProcessed):
		return // moved by an earlier transaction
	case err != nil:
		_ = d.Nack()
		return
	}
	p.open = append(p.open, u)
	p.decideOpen(ctx, f)
	if !u.commit {
		_ = d.Nack() // the transaction may not be prepared
	}
}

// decideOpen retries the unconfirmed decisions.
func (p *coordinator) decideOpen(ctx context.Context, f *feature) {
	p.recover(ctx, f)
	var open []undecided
	for _, u := range p.open {
		if !p.decide(ctx, f, &u) {
			open = append(open, u)
		}
	}
	p.open = open
}

// decide resolves an unknown outcome of the prepare, and then sends the decision. It reports whether the decision
// was confirmed or is unnecessary.
func (p *coordinator) decide(ctx context.Context, f *feature, u *undecided) bool {
	if u.unknownOutcome != nil {
		err := u.unknownOutcome.Prepare(ctx, u.xid)
		switch {
		case errors.Is(err, client.ErrOutcomeLost): // retries cannot resolve the outcome
			if p.lost == nil {
				p.lost = map[string]bool{}
			}
			p.lost[u.xid] = true
			return true
		case errors.Is(err, client.ErrOutcomeUnknown):
			p.last = err
			return false
		case err != nil:
			return true // the transaction is not prepared
		}
		u.unknownOutcome = nil
	}
	send := admin.New(f.client).RollbackPrepared
	if u.commit {
		send = admin.New(f.client).CommitPrepared
	}
	decided, err := send(ctx, u.xid)
	switch {
	case errors.Is(err, client.ErrUnavailable), errors.Is(err, client.ErrOutcomeUnknown):
		p.last = err
		return false
	case err != nil:
		f.broken(historycheck.RuleSemantics, "decision for %s (commit: %v) failed: %v", u.xid, u.commit, err)
	case decided.Heuristic:
		f.broken(historycheck.RuleSemantics, "%s was decided by an operator, but the test has none", u.xid)
	}
	return true
}

// recover rolls back transactions with a lost outcome that are prepared.
func (p *coordinator) recover(ctx context.Context, f *feature) {
	if len(p.lost) == 0 {
		return
	}
	for t, err := range admin.New(f.client).ListPrepared(ctx) {
		if err != nil {
			p.last = err
			return
		}
		if p.lost[t.XID] {
			delete(p.lost, t.XID)
			p.open = append(p.open, undecided{xid: t.XID})
		}
	}
}

// receive returns a message, or nil if none arrives within featureEvery.
func (p *coordinator) receive(parent context.Context, f *feature) *client.Delivery {
	ctx, cancel := context.WithTimeout(parent, featureEvery)
	defer cancel()
	if p.consumer == nil {
		c, err := f.client.Consume(ctx, f.queue("in"), client.ConsumerOptions{Subscription: SubWork, Prefetch: 2})
		if err != nil {
			return nil
		}
		p.consumer = c
	}
	d, err := p.consumer.Receive(ctx)
	if err != nil {
		if !errors.Is(err, context.DeadlineExceeded) {
			_ = p.consumer.Close()
			p.consumer = nil
		}
		return nil
	}
	return d
}

// settle moves the remaining messages.
func (p *coordinator) settle(ctx context.Context, f *feature) error {
	for {
		p.transfer(ctx, f, false)
		q, err := admin.New(f.client).GetQueue(ctx, f.queue("in"))
		if err == nil && q.Messages == 0 && len(p.open) == 0 {
			break
		}
		if ctx.Err() != nil {
			f.broken(historycheck.RuleUndelivered, "%d messages remain, and %d decisions have no response: %v", q.Messages,
				len(p.open), err)
			return fmt.Errorf("feature %s: %w; %d messages remain, and %d decisions have no response: %w", f.name, ctx.Err(),
				q.Messages, len(p.open), errors.Join(err, p.last))
		}
	}
	if p.consumer != nil {
		_ = p.consumer.Close()
	}
	return nil
}
