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
	// firstFeature is the lowest producer number of the features.
	firstFeature = 300
	// featurePublish is the timeout of a publish.
	featurePublish = 3 * time.Second
	// featureEvery is the average interval between two publishes of a feature.
	featureEvery = 200 * time.Millisecond
)

// features exercise queue features other than ordered storage. Each feature has separate queues, a publisher and
// consumers. At the end, each feature compares the state of its messages with the responses.
type features struct {
	w         *Workload
	client    *client.Client
	list      []*feature
	stop      context.CancelFunc
	running   sync.WaitGroup
	consuming sync.WaitGroup
	endSink   context.CancelFunc
}

type feature struct {
	*features
	featureKind
	id  uint32
	n   uint64
	rng *rand.Rand

	mu   sync.Mutex // guards the fields below
	sent map[historycheck.ID]sentMessage
	got  map[string]map[historycheck.ID]int // number of deliveries, by queue and subscription
}

// sentMessage is a published message with its outcome.
type sentMessage struct {
	client.Message

	outcome historycheck.Outcome
	err     error
}

// featureKind describes the queues, messages and checks of a feature.
type featureKind struct {
	name   string
	queues map[string]admin.CreateQueueOptions // by name suffix
	// setup sets configuration that is not part of queue creation; optional.
	setup func(ctx context.Context, f *feature) error
	// message returns a random message to publish.
	message func(f *feature) client.Message
	// into is the queue to which the feature publishes.
	into string
	// act runs after each publish; settle completes the work of act at the end. Both are optional.
	act    func(f *feature)
	settle func(ctx context.Context, f *feature) error
	// sinks are the consumed subscriptions, as pairs of queue and subscription. They must be empty at the end, except for
	// delayed messages if canWait is set.
	sinks [][2]string
	// canWait is true if delayed messages may remain at the end, because the clock of the active that accepted them
	// was ahead.
	canWait bool
	// check compares stored and delivered messages with the published messages.
	check func(ctx context.Context, f *feature) error
}

// startFeatures creates the queues and starts all features.
func (w *Workload) startFeatures(ctx context.Context) (_ *features, err error) {
	all := &features{w: w}
	if all.client, err = w.pair.NewClient(ctx); err != nil {
		return nil, fmt.Errorf("features: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, all.client.Close())
		}
	}()
	for i, kind := range featureKinds() {
		f := &feature{
			features: all, featureKind: kind, id: firstFeature + uint32(i),
			rng:  rand.New(rand.NewPCG(w.opts.Seed, 5000+uint64(i))),
			sent: map[historycheck.ID]sentMessage{}, got: map[string]map[historycheck.ID]int{},
		}
		if err := f.create(ctx); err != nil {
			return nil, fmt.Errorf("feature %s: %w", f.name, err)
		}
		all.list = append(all.list, f)
	}
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	sink, endSink := context.WithCancel(context.WithoutCancel(ctx))
	all.stop, all.endSink = stop, endSink
	for _, f := range all.list {
		all.running.Go(func() { f.publishAll(run) })
		for _, s := range f.sinks {
			all.consuming.Go(func() { f.consume(sink, s[0], s[1]) })
		}
	}
	return all, nil
}

func (f *feature) queue(name string) string { return f.w.opts.Prefix + f.name + "-" + name }

func (f *feature) create(ctx context.Context) error {
	for _, dead := range []bool{true, false} { // create a dead-letter queue before the queue that references it
		for name, o := range f.queues {
			if (o.Config.DeadLetter == "") != dead {
				continue
			}
			if o.Config.DeadLetter != "" {
				o.Config.DeadLetter = f.queue(o.Config.DeadLetter)
			}
			if _, _, err := admin.New(f.client).CreateQueue(ctx, f.queue(name), o); err != nil {
				return err
			}
		}
	}
	if f.setup == nil {
		return nil
	}
	return f.setup(ctx, f)
}

func (f *feature) publishAll(ctx context.Context) {
	for {
		wait(ctx, featureEvery/2+time.Duration(f.rng.Int64N(int64(featureEvery))))
		if ctx.Err() != nil {
			return
		}
		f.publishOne(f.message(f))
		if f.act != nil {
			f.act(f)
		}
	}
}

// publishOne publishes a message once. It does not retry an unknown outcome, which could store a duplicate.
func (f *feature) publishOne(m client.Message) {
	f.n++
	id := historycheck.ID{Producer: f.id, N: f.n}
	m.Body = historycheck.Body(id, f.rng.IntN(300))
	ctx, cancel := context.WithTimeout(context.Background(), featurePublish)
	defer cancel()
	_, err := f.client.Publish(ctx, f.queue(f.into), m)
	if errors.Is(err, client.ErrClosed) {
		return
	}
	m.Body = nil
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent[id] = sentMessage{Message: m, outcome: verdict(err), err: err}
}

// consume acknowledges all messages of a subscription until ctx is done.
func (f *feature) consume(ctx context.Context, queue, sub string) {
	for ctx.Err() == nil {
		if err := f.consumeOnce(ctx, queue, sub); err != nil {
			wait(ctx, pollInterval)
		}
	}
}

func (f *feature) consumeOnce(ctx context.Context, queue, sub string) error {
	c, err := f.client.Consume(ctx, f.queue(queue), client.ConsumerOptions{Subscription: sub, Prefetch: 16})
	if err != nil {
		return fmt.Errorf("feature %s: %w", f.name, err)
	}
	defer func() { _ = c.Close() }()
	for {
		d, err := c.Receive(ctx)
		if err != nil {
			return fmt.Errorf("feature %s: %w", f.name, err)
		}
		f.delivered(queue, sub, d.Body)
		_ = d.Ack() // on an error, the message is redelivered
	}
}

func (f *feature) delivered(queue, sub string, body []byte) {
	id, err := historycheck.ParseBody(body)
	if err != nil {
		f.broken(historycheck.RuleBody, "%s/%s: %v", queue, sub, err)
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	key := queue + "/" + sub
	if f.got[key] == nil {
		f.got[key] = map[historycheck.ID]int{}
	}
	f.got[key][id]++
}

func (f *feature) broken(rule historycheck.Rule, format string, args ...any) {
	f.w.history.AddBroken(historycheck.Violation{
		Rule: rule, Text: "feature " + f.name + ": " + fmt.Sprintf(format, args...),
	})
}

// stored returns the number of copies of each message in a queue.
func (f *feature) stored(ctx context.Context, queue string) (map[historycheck.ID]int, error) {
	all := map[historycheck.ID]int{}
	for m, err := range f.client.Browse(ctx, f.queue(queue), client.BrowseOptions{}) {
		if err != nil {
			return nil, fmt.Errorf("feature %s: read %s: %w", f.name, queue, err)
		}
		id, err := historycheck.ParseBody(m.Body)
		if err != nil {
			f.broken(historycheck.RuleBody, "%s sequence %d: %v", queue, m.Sequence, err)
			continue
		}
		all[id]++
	}
	return all, nil
}

// drained waits until a subscription is empty or, if canWait is set, until all messages of its queue are delayed.
func (f *feature) drained(ctx context.Context, queue, sub string) error {
	for {
		q, err := admin.New(f.client).GetQueue(ctx, f.queue(queue))
		if err != nil {
			return fmt.Errorf("feature %s: %w", f.name, err)
		}
		for _, s := range q.Subscriptions {
			if s.Name == sub && (s.Backlog == 0 || f.canWait && f.waits(ctx, queue)) {
				return nil
			}
		}
		if wait(ctx, pollInterval); ctx.Err() != nil {
			f.broken(historycheck.RuleUndelivered, "%s/%s is not drained: %+v", queue, sub, q.Subscriptions)
			return fmt.Errorf("feature %s: drain %s/%s: %w", f.name, queue, sub, ctx.Err())
		}
	}
}

// waits reports whether all messages of a queue are delayed for at least another second. The status of a
// subscription does not contain the number of delayed messages.
func (f *feature) waits(ctx context.Context, queue string) bool {
	for m, err := range f.client.Browse(ctx, f.queue(queue), client.BrowseOptions{}) {
		if err != nil || time.Until(m.DeliverAt) < time.Second {
			return false
		}
	}
	return true
}

// finish stops the publishers, waits until all messages are consumed, and runs the checks.
func (all *features) finish(ctx context.Context) error {
	all.stop()
	all.running.Wait()
	for _, f := range all.list {
		if f.settle != nil {
			if err := f.settle(ctx, f); err != nil {
				return err
			}
		}
		for _, s := range f.sinks {
			if err := f.drained(ctx, s[0], s[1]); err != nil {
				return err
			}
		}
	}
	all.endSink()
	all.consuming.Wait()
	for _, f := range all.list {
		if err := f.check(ctx, f); err != nil {
			return err
		}
		f.w.history.Edit(func(h *historycheck.History) { h.Calls["feature "+f.name] += len(f.sent) })
	}
	return nil
}

func (all *features) remove(ctx context.Context) (err error) {
	for _, f := range all.list {
		if f.into != "" { // remove its forwards, which prevent the deletion of the other queues
			if q, getErr := admin.New(all.client).GetQueue(ctx, f.queue(f.into)); getErr == nil && len(q.Forwards) > 0 {
				_, setErr := admin.New(all.client).SetForwards(ctx, f.queue(f.into), nil)
				err = errors.Join(err, setErr)
			}
		}
		for _, withDeadLetter := range []bool{true, false} {
			for name, o := range f.queues {
				if (o.Config.DeadLetter != "") != withDeadLetter {
					continue
				}
				_, deleteErr := admin.New(all.client).DeleteQueue(ctx, f.queue(name), false)
				err = errors.Join(err, deleteErr)
			}
		}
	}
	return errors.Join(err, all.client.Close())
}

func (all *features) abort() {
	all.stop()
	all.endSink()
	_ = all.client.Close()
	all.running.Wait()
	all.consuming.Wait()
}
