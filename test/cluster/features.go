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
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

const (
	// firstFeature is the lowest number of the features' producers.
	firstFeature = 300
	// featurePublish is how long a feature waits for the answer to a publish.
	featurePublish = 3 * time.Second
	// featureEvery is how often each of them does something.
	featureEvery = 200 * time.Millisecond
)

// features use what queues can do besides keeping messages in order: each has queues, a publisher and consumers of its
// own, and holds at the end what came of its messages against what it was told.
type features struct {
	w         *Workload
	client    *client.Client
	list      []*feature
	stop      context.CancelFunc
	running   sync.WaitGroup
	consuming sync.WaitGroup
	endSink   context.CancelFunc
}

// feature is one of them.
type feature struct {
	*features
	featureKind
	id  uint32
	n   uint64
	rng *rand.Rand

	mu   sync.Mutex // guards what is below
	sent map[historycheck.ID]sentMessage
	got  map[string]map[historycheck.ID]int // how often, by queue and subscription
}

// sentMessage is what was published, and what its publisher was told.
type sentMessage struct {
	client.Message

	outcome historycheck.Outcome
	err     error
}

// featureKind is what a feature does.
type featureKind struct {
	name   string
	queues map[string]client.CreateQueueOptions // by the last part of their names
	// setup makes what the queues do not say; nil: nothing.
	setup func(ctx context.Context, f *feature) error
	// message draws what is published to the first queue.
	message func(f *feature) client.Message
	// into is the queue that is published to.
	into string
	// act does more, after each publish; settle ends what it has begun. nil: nothing.
	act    func(f *feature)
	settle func(ctx context.Context, f *feature) error
	// sinks are consumed: pairs of queue and subscription. At the end nothing may be left in them.
	sinks [][2]string
	// mayWait: what is left may be messages whose time has not come, since the clock of an active that accepted them was
	// ahead.
	mayWait bool
	// check holds what is stored and was delivered against what was sent.
	check func(ctx context.Context, f *feature) error
}

// startFeatures makes their queues and begins.
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

// queue is the name of one of the feature's queues.
func (f *feature) queue(name string) string { return f.w.opts.Prefix + f.name + "-" + name }

func (f *feature) create(ctx context.Context) error {
	for _, dead := range []bool{true, false} { // a dead-letter queue before the one that names it
		for name, o := range f.queues {
			if (o.Config.DeadLetter == "") != dead {
				continue
			}
			if o.Config.DeadLetter != "" {
				o.Config.DeadLetter = f.queue(o.Config.DeadLetter)
			}
			if _, _, err := f.client.CreateQueue(ctx, f.queue(name), o); err != nil {
				return err
			}
		}
	}
	if f.setup == nil {
		return nil
	}
	return f.setup(ctx, f)
}

// publishAll publishes until ctx ends.
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

// publishOne publishes a message once. An unknown outcome stays unknown: publishing it again could double it.
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

// consume acknowledges everything of a subscription until ctx ends.
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
		d.Ack()
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

// broken reports what must not be.
func (f *feature) broken(rule historycheck.Rule, format string, args ...any) {
	f.w.history.AddBroken(historycheck.Violation{
		Rule: rule, Text: "feature " + f.name + ": " + fmt.Sprintf(format, args...),
	})
}

// stored reads how often each message is in a queue.
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

// drained waits until a subscription has nothing left.
func (f *feature) drained(ctx context.Context, queue, sub string) error {
	for {
		q, err := f.client.GetQueue(ctx, f.queue(queue))
		if err != nil {
			return fmt.Errorf("feature %s: %w", f.name, err)
		}
		for _, s := range q.Subscriptions {
			if s.Name == sub && (s.Backlog == 0 || f.mayWait && f.waits(ctx, queue)) {
				return nil
			}
		}
		if wait(ctx, pollInterval); ctx.Err() != nil {
			f.broken(historycheck.RuleUndelivered, "%s/%s is not drained: %+v", queue, sub, q.Subscriptions)
			return fmt.Errorf("feature %s: drain %s/%s: %w", f.name, queue, sub, ctx.Err())
		}
	}
}

// waits tells whether all messages of a queue are to be delivered later. (Of a subscription, those that are delayed are
// not shown.)
func (f *feature) waits(ctx context.Context, queue string) bool {
	for m, err := range f.client.Browse(ctx, f.queue(queue), client.BrowseOptions{}) {
		if err != nil || time.Until(m.DeliverAt) < time.Second {
			return false
		}
	}
	return true
}

// finish stops the publishers, waits until everything is consumed, and checks.
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

// remove deletes the queues.
func (all *features) remove(ctx context.Context) (err error) {
	for _, f := range all.list {
		if f.into != "" { // ends its forwards, which would hold the others
			if q, getErr := all.client.GetQueue(ctx, f.queue(f.into)); getErr == nil && len(q.Forwards) > 0 {
				_, setErr := all.client.SetForwards(ctx, f.queue(f.into), nil)
				err = errors.Join(err, setErr)
			}
		}
		for _, withDeadLetter := range []bool{true, false} {
			for name, o := range f.queues {
				if (o.Config.DeadLetter != "") != withDeadLetter {
					continue
				}
				_, deleteErr := all.client.DeleteQueue(ctx, f.queue(name), false)
				err = errors.Join(err, deleteErr)
			}
		}
	}
	return errors.Join(err, all.client.Close())
}

// abort ends everything at once.
func (all *features) abort() {
	all.stop()
	all.endSink()
	_ = all.client.Close()
	all.running.Wait()
	all.consuming.Wait()
}
