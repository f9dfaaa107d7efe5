// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package fleet

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/Azure/go-amqp"

	"github.com/lockstep-mq/lockstep/client"
)

// amqpSubscription is the subscription of a receiving link without capabilities.
const amqpSubscription = client.DefaultSubscription

// amqpCredit is the maximum number of messages in flight to a link.
const amqpCredit = 500

// amqpConsumer consumes with an AMQP client. If the connection is lost, it connects to the next node of the fleet. Its
// messages contain no sequences.
type amqpConsumer struct {
	t         *testing.T
	addresses []string
	all       map[string]*deliveries
	end       context.CancelFunc
	joined    sync.WaitGroup
}

func newAMQPConsumer(w *world, queues ...string) *amqpConsumer {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	a := &amqpConsumer{
		t: w.t, addresses: w.amqpAddresses(), end: cancel, all: newDeliveriesOf(w, queues, amqpSubscription),
	}
	w.t.Cleanup(func() {
		cancel()
		a.joined.Wait()
	})
	for _, d := range a.all {
		a.joined.Go(func() { a.run(ctx, d) })
	}
	return a
}

func (a *amqpConsumer) run(ctx context.Context, d *deliveries) {
	backoff := time.NewTicker(amqpBackoff)
	defer backoff.Stop()
	errs := map[string]int{}
	for i := 0; ctx.Err() == nil; i++ {
		err := amqpSession(ctx, a.addresses[i%len(a.addresses)], func(dialing context.Context, s *amqp.Session) error {
			return a.receive(ctx, dialing, s, d)
		})
		errs[fmt.Sprint(err)]++
		select {
		case <-backoff.C:
		case <-ctx.Done():
		}
	}
	if a.t.Failed() {
		a.t.Logf("AMQP errors of the consumer of %s: %v", d.queue, errs)
	}
}

// receive consumes until the link or the connection ends.
func (a *amqpConsumer) receive(ctx, dialing context.Context, s *amqp.Session, d *deliveries) error {
	r, err := s.NewReceiver(dialing, d.queue, &amqp.ReceiverOptions{
		Credit: amqpCredit, SettlementMode: amqp.ReceiverSettleModeSecond.Ptr(),
	})
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	var settling sync.WaitGroup
	ctx, cancel := context.WithCancel(ctx)
	defer settling.Wait()
	defer cancel()
	for {
		m, err := r.Receive(ctx, nil)
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		count := uint32(0)
		if m.Header != nil {
			count = m.Header.DeliveryCount
		}
		round := d.w.round.Load()
		k, nack := d.received(m.GetData(), 0, count)
		settling.Go(func() {
			if nack {
				_ = r.ModifyMessage(ctx, m, &amqp.ModifyMessageOptions{DeliveryFailed: true})
				return
			}
			d.settled(k, round, r.AcceptMessage(ctx, m))
		})
	}
}

// settled records the response to an acknowledgement. If the queue moves or a pair has a failover, the node settles the
// delivery as modified, which go-amqp does not report.
func (d *deliveries) settled(k key, round uint32, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil || inRound(round) || d.w.round.Load() != round {
		d.refused++
		return
	}
	d.confirmed++
	d.of(k).confirmed = true
}

func (a *amqpConsumer) deliveries(queue string) *deliveries { return a.all[queue] }

func (a *amqpConsumer) stop() {
	a.t.Helper()
	a.end()
	waitFor(a.t, &a.joined, "end of the AMQP consumer")
}

// amqpSession calls run with a session on a node. dialing is the context with the timeout of the connection.
func amqpSession(
	ctx context.Context, address string, run func(dialing context.Context, s *amqp.Session) error,
) error {
	dialing, cancel := context.WithTimeout(ctx, amqpDialTimeout)
	defer cancel()
	conn, err := amqp.Dial(dialing, address, &amqp.ConnOptions{SASLType: amqp.SASLTypeAnonymous()})
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer func() { _ = conn.Close() }()
	session, err := conn.NewSession(dialing, nil)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	return run(dialing, session)
}

// amqpAddresses returns the AMQP addresses of all nodes.
func (w *world) amqpAddresses() (all []string) {
	for _, p := range w.pairs {
		for i := range p.amqp {
			all = append(all, "amqp://"+p.amqp[i].Address())
		}
	}
	return all
}
