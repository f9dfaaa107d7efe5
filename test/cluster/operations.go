// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

const (
	// SubWork is the subscription that the applications consume or purge.
	SubWork = "work"
	// firstPinned is the lowest producer number of the applications that reach only one node. firstSideClient is the
	// lowest number of the side clients. The numbers of the other applications begin at historycheck.FirstApplication.
	firstPinned     = 150
	firstSideClient = 200
	// appAckTimeout is the acknowledgement timeout of applications. It is shorter than the longest deadline of a call.
	appAckTimeout = time.Second
	// maxAttempts is the maximum number of attempts of a call.
	maxAttempts = 6
	// deadlines is the number of different deadlines, which double from 1 ms to 2 s. The shortest may expire before
	// the response, and the longest suffices for a failover.
	deadlines = 12
)

// applications use the client with short deadlines. They retry calls with an unknown outcome through the same
// object, and repeat rejected calls, which stored nothing. One application per node reaches only that node.
type applications struct {
	w       *Workload
	client  *client.Client
	pinned  []*client.Client
	stop    chan struct{}
	running sync.WaitGroup
	names   struct{ in, one, two, purged, life string }
}

func (w *Workload) startApplications(ctx context.Context) (_ *applications, err error) {
	a := &applications{w: w, stop: make(chan struct{})}
	if a.client, err = w.pair.NewClient(ctx); err != nil {
		return nil, fmt.Errorf("applications: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, a.closeClients())
		}
	}()
	name := func(s string) string { return w.opts.Prefix + "app-" + s }
	a.names.in, a.names.one, a.names.two, a.names.purged, a.names.life = name("in"), name("one"), name("two"),
		name("purged"), name("life")
	for queue, subs := range map[string][]string{
		a.names.in: {SubWork, SubAudit}, a.names.one: {SubAudit}, a.names.two: {SubAudit},
		a.names.purged: {SubWork, SubAudit},
	} {
		o := admin.CreateQueueOptions{Subscriptions: subs}
		if _, _, err := admin.New(a.client).CreateQueue(ctx, queue, o); err != nil {
			return nil, fmt.Errorf("applications: %w", err)
		}
	}
	// An earlier workload on the same pair may not have deleted the queue.
	if _, err := admin.New(a.client).DeleteQueue(ctx, a.names.life, false); err != nil &&
		!errors.Is(err, client.ErrQueueNotFound) {
		return nil, fmt.Errorf("applications: %w", err)
	}
	runs := []func(*application){(*application).transfer, (*application).transfer, (*application).fill}
	if !w.opts.NoAdministration {
		runs = append(runs, (*application).purge, (*application).create, (*application).remove)
	}
	for _, address := range w.pair.Addresses() {
		c, err := w.pair.NewClientOf(ctx, address)
		if err != nil {
			return nil, fmt.Errorf("applications: %w", err)
		}
		a.pinned = append(a.pinned, c)
	}
	for i, run := range runs {
		a.start(uint32(historycheck.FirstApplication+i), a.client, run)
	}
	for i, c := range a.pinned {
		a.start(uint32(firstPinned+i), c, (*application).transfer)
	}
	return a, nil
}

func (a *applications) start(id uint32, c *client.Client, run func(*application)) {
	rng := rand.New(rand.NewPCG(a.w.opts.Seed, 3000+uint64(id)))
	app := &application{applications: a, id: id, client: c, rng: rng}
	a.running.Go(func() { app.loop(func() { run(app) }) })
}

func (a *applications) closeClients() error {
	errs := []error{a.client.Close()}
	for _, c := range a.pinned {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// RefusableQueues returns the queues on which a test may make publishes fail, because their publishers handle the
// error.
func (w *Workload) RefusableQueues() []string {
	if w.apps == nil {
		return nil
	}
	return []string{w.apps.names.in, w.apps.names.one, w.apps.names.two, w.apps.names.purged}
}

// queues returns the queues that exist during the whole test.
func (a *applications) queues() []string {
	return []string{a.names.in, a.names.one, a.names.two, a.names.purged}
}

// finish stops the applications after their current operations.
func (a *applications) finish() {
	close(a.stop)
	a.running.Wait()
}

func (a *applications) close() error {
	err := a.closeClients()
	select {
	case <-a.stop:
	default:
		close(a.stop)
	}
	a.running.Wait()
	return err
}

// application executes one operation at a time.
type application struct {
	*applications
	id       uint32
	client   *client.Client // a separate client, if the application is pinned to a node
	n        uint64         // number of the application's last message
	rng      *rand.Rand
	consumer *client.Consumer
	aborted  bool // the client was closed, so the history is not checked
}

func (a *application) loop(act func()) {
	defer func() {
		if a.consumer != nil {
			_ = a.consumer.Close()
		}
	}()
	every := time.Second / time.Duration(a.w.opts.OperationsPerSecond)
	for {
		timer := time.NewTimer(every/2 + time.Duration(a.rng.Int64N(int64(every))))
		select {
		case <-a.stop:
			timer.Stop()
			return
		case <-timer.C:
		}
		act()
	}
}

func (a *application) next() historycheck.ID {
	a.n++
	return historycheck.ID{Producer: a.id, N: a.n}
}

// verdict converts a call's error to an outcome, according to the documentation of client.ErrOutcomeUnknown.
func verdict(err error) historycheck.Outcome {
	switch {
	case err == nil:
		return historycheck.Acked
	case errors.Is(err, client.ErrOutcomeUnknown):
		return historycheck.Unknown
	default:
		return historycheck.Refused
	}
}

// attempt makes a call until it succeeds, at most maxAttempts times, and records the last outcome in o. At random, it
// stops earlier. It also stops when the client is closed or the outcome can no longer be determined. If repeatable is
// false, a call with an unknown outcome is not retried.
func (a *application) attempt(o *historycheck.Operation, repeatable bool, call func(context.Context) error) {
	h := a.w.history
	o.Sent = h.Now()
	for i := 1; ; i++ {
		ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond<<a.rng.IntN(deadlines))
		err := call(ctx)
		cancel()
		was := o.Outcome
		o.Outcome, o.Done, o.Error = verdict(err), h.Now(), ""
		if err != nil {
			o.Error = err.Error()
		}
		a.count(o.Kind, was, o.Outcome, err)
		a.checkError(o, err)
		abandon := o.Outcome == historycheck.Unknown && !repeatable || a.rng.IntN(8) == 0
		a.aborted = a.aborted || errors.Is(err, client.ErrClosed)
		if o.Outcome == historycheck.Acked || i == maxAttempts || abandon || a.aborted ||
			errors.Is(err, client.ErrOutcomeLost) {
			return
		}
		wait(context.Background(), time.Duration(a.rng.Int64N(int64(100*time.Millisecond))))
	}
}

// count counts calls by kind and outcome, and retries by the outcomes before and after.
func (a *application) count(kind historycheck.Kind, was, is historycheck.Outcome, err error) {
	a.w.history.Edit(func(h *historycheck.History) {
		h.Calls[string(kind)+" "+string(is)]++
		if a.id >= firstPinned {
			h.Calls["pinned "+string(is)]++
		}
		switch {
		case was == historycheck.Unknown:
			h.Calls["unknown, then "+string(is)]++
		case was == historycheck.Refused:
			h.Calls["refused, then "+string(is)]++
		}
		if errors.Is(err, client.ErrLimit) {
			h.Calls[limitCalls]++
		}
	})
}

// limitCalls is the name of the counter of calls that were rejected because the disk is low or a queue is full.
const limitCalls = "limit"

// checkError records a violation if a call was rejected with an error that its documentation does not list.
func (a *application) checkError(o *historycheck.Operation, err error) {
	allowed := []error{client.ErrUnavailable, client.ErrClosed, client.ErrLimit}
	switch o.Kind {
	case historycheck.KindCreate:
		allowed = append(allowed, client.ErrAlreadyExists)
	case historycheck.KindDelete:
		allowed = append(allowed, client.ErrQueueNotFound)
	case historycheck.KindPublish, historycheck.KindTxn, historycheck.KindAck, historycheck.KindPurge:
	}
	if o.Outcome != historycheck.Refused {
		return
	}
	_, moves := a.w.pair.(Locator)
	if moves && o.Kind != historycheck.KindPublish { // a delivery of the former owner of the queue
		allowed = append(allowed, client.ErrInvalid)
	}
	if known, ok := errors.AsType[*client.Error](err); ok {
		switch {
		case known.Reason == "CROSS_PAIR" && o.Kind == historycheck.KindTxn && moves:
			return
		case known.Reason == "QUEUE_PAUSED", known.Reason == "ACK_DEADLINE_EXPIRED" && o.Kind == historycheck.KindAck:
			return
		}
	}
	for _, e := range allowed {
		if errors.Is(err, e) {
			return
		}
	}
	a.w.history.AddBroken(historycheck.Violation{
		Rule: historycheck.RuleSemantics,
		Text: fmt.Sprintf("%s failed with the unexpected error %q", o.Kind, err),
	})
}

func (a *application) record(o *historycheck.Operation, parts ...historycheck.Publish) {
	if a.aborted {
		return
	}
	a.w.history.Edit(func(h *historycheck.History) {
		for _, p := range parts {
			p.Sent, p.Done, p.Outcome, p.Error = o.Sent, o.Done, o.Outcome, o.Error
			o.Parts = append(o.Parts, p.ID)
			h.Parts = append(h.Parts, p)
		}
		h.Operations = append(h.Operations, *o)
	})
}

// transfer executes one operation of an application that moves messages from one queue to two others.
func (a *application) transfer() {
	switch rng := a.rng.IntN(100); {
	case rng < 40:
		a.publish(a.names.in)
	case rng < 85:
		a.commit(a.receive())
	default:
		if d := a.receive(); d != nil {
			a.ack(d)
		}
	}
}

// publish sends one message. An unknown outcome is not resolved, because a new publish could store a duplicate.
func (a *application) publish(queue string) {
	p := historycheck.Publish{ID: a.next(), Queue: queue}
	o := historycheck.Operation{Kind: historycheck.KindPublish}
	m := a.w.message(p.ID, a.rng.IntN(1<<10))
	a.attempt(&o, false, func(ctx context.Context) error {
		r, err := a.client.Publish(ctx, queue, m)
		p.Sequence, p.LSN, p.Address = r.Sequence, r.LSN, r.Address
		return err
	})
	// A publish with an unknown outcome may be stored after later publishes.
	p.Unordered = o.Outcome == historycheck.Unknown
	a.record(&o, p)
}

// commit executes a transaction that publishes two messages and acknowledges d, if d is not nil.
func (a *application) commit(d *client.Delivery) {
	o := historycheck.Operation{Kind: historycheck.KindTxn}
	parts := []historycheck.Publish{
		{ID: a.next(), Queue: a.names.one, Unordered: true},
		{ID: a.next(), Queue: a.names.two, Unordered: true},
	}
	t := a.client.Begin()
	for _, p := range parts {
		t.Publish(p.Queue, a.w.message(p.ID, a.rng.IntN(1<<10)))
	}
	if d != nil {
		t.Ack(d)
		o.Queue, o.Input = a.names.in, d.Sequence
	}
	a.attempt(&o, true, func(ctx context.Context) error {
		r, err := t.Commit(ctx)
		for i := range parts[:min(len(parts), len(r.Results))] {
			parts[i].Sequence, parts[i].LSN = r.Results[i].FirstSequence, r.LSN
		}
		return err
	})
	a.record(&o, parts...)
	if d != nil && o.Outcome != historycheck.Acked {
		_ = d.Nack()
	}
}

// ack acknowledges one message, and waits for the commit.
func (a *application) ack(d *client.Delivery) {
	o := historycheck.Operation{Kind: historycheck.KindAck, Queue: a.names.in, Input: d.Sequence}
	a.attempt(&o, true, d.AckSync)
	a.record(&o)
}

// receive returns a message, or nil if none arrives within 200 ms.
func (a *application) receive() *client.Delivery {
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if a.consumer != nil && a.rng.IntN(20) == 0 { // so that messages in flight are redelivered
		_ = a.consumer.Close()
		a.consumer = nil
	}
	if a.consumer == nil {
		c, err := a.client.Consume(ctx, a.names.in, client.ConsumerOptions{
			Subscription: SubWork, Prefetch: 4, AckTimeout: appAckTimeout,
		})
		if err != nil {
			return nil
		}
		a.consumer = c
	}
	d, err := a.consumer.Receive(ctx)
	if err != nil {
		return nil
	}
	// two competing consumers receive messages in any order
	a.w.delivered(historycheck.Delivery{Queue: a.names.in, Sub: SubWork, Sequence: d.Sequence}, d.Message)
	return d
}

func (a *application) fill() { a.publish(a.names.purged) }

// purge occasionally empties SubWork.
func (a *application) purge() {
	if a.rng.IntN(4) > 0 {
		return
	}
	var r admin.Request
	o := historycheck.Operation{Kind: historycheck.KindPurge, Queue: a.names.purged}
	a.attempt(&o, true, func(ctx context.Context) (err error) {
		o.Count, err = admin.New(a.client).As(&r).PurgeQueue(ctx, o.Queue, SubWork)
		return err
	})
	a.record(&o)
}

func (a *application) create() {
	var r admin.Request
	o := historycheck.Operation{Kind: historycheck.KindCreate, Queue: a.names.life}
	a.attempt(&o, true, func(ctx context.Context) error {
		_, _, err := admin.New(a.client).As(&r).CreateQueue(ctx, o.Queue, admin.CreateQueueOptions{})
		return err
	})
	a.record(&o)
}

func (a *application) remove() {
	var r admin.Request
	o := historycheck.Operation{Kind: historycheck.KindDelete, Queue: a.names.life}
	a.attempt(&o, true, func(ctx context.Context) error {
		_, err := admin.New(a.client).As(&r).DeleteQueue(ctx, o.Queue, false)
		return err
	})
	a.record(&o)
}
