// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
)

// FanoutOptions configures the load on one queue with many subscriptions.
type FanoutOptions struct {
	// Subscriptions is the number of subscriptions. Each receives every message, which is stored once.
	Subscriptions int
	// Window is the number of messages in flight per producer.
	Producers, Window int
	// If there are fewer Consumers than Subscriptions, each consumer reads at most Interval messages of a subscription,
	// and continues with the subscription that has waited longest. The subscriptions therefore have different positions.
	Consumers, Interval, Prefetch int
	// Messages is the number of messages. Their bodies have SizeMin to SizeMax bytes.
	Messages, SizeMin, SizeMax int
	// If Backlog is set, all messages are published before the consumers start.
	Backlog bool
	// Parts is the number of values of a message property; 0 means none. With Filtered, each subscription has a
	// filter that matches one value.
	Parts    int
	Filtered bool
	// Drain is the maximum duration of deliveries after the last publish; 0 means until all messages are delivered.
	Drain time.Duration
}

// emptyTimeout is the time without messages after which a consumer leaves a subscription. Even on a busy machine,
// the delivery of existing messages takes less time.
const emptyTimeout = time.Second

type fanout struct {
	FanoutOptions
	client *client.Client
	queue  string
	// free contains the subscriptions without a consumer, in the order in which they became free.
	free      chan int
	delivered []atomic.Int64     // by subscription
	expected  []int64            // by subscription
	left      atomic.Int64       // outstanding deliveries
	published atomic.Bool        // all messages were published
	over      context.CancelFunc // stops the consumers
	// waits contains the histograms of each consumer, during and after publishing.
	waits [][2]*hdrhistogram.Histogram
}

// Fanout measures publishing to a queue with many subscriptions, and the concurrent deliveries. It reports up to
// three results: "publish", "deliver" during publishing, and "drain" after publishing. A latency of "publish" is
// the time to the acknowledgement. A latency of the others is the time that a consumer waited for its next message.
func Fanout(ctx context.Context, t bench.Target, o FanoutOptions, report func(bench.Result) error) error {
	f := &fanout{
		FanoutOptions: o, client: t.Client, queue: bench.QueueNames(1)[0], free: make(chan int, o.Subscriptions),
		delivered: make([]atomic.Int64, o.Subscriptions), waits: make([][2]*hdrhistogram.Histogram, o.Consumers),
	}
	for i := range f.waits {
		f.waits[i] = [2]*hdrhistogram.Histogram{bench.NewHistogram(), bench.NewHistogram()}
	}
	f.expect()
	var results []bench.Result
	err := f.withQueue(ctx, func() (err error) {
		results, err = f.measure(ctx, t)
		return err
	})
	for i := 0; err == nil && i < len(results); i++ {
		err = report(results[i])
	}
	return err
}

func (f *fanout) expect() {
	f.expected = make([]int64, f.Subscriptions)
	for i := range f.expected {
		f.expected[i] = int64(f.Messages)
		if f.Filtered {
			order := bench.Order{Parts: f.Parts}
			f.expected[i] = int64(order.PartSize(i, f.Messages))
		}
		f.left.Add(f.expected[i])
	}
}

func (f *fanout) measure(ctx context.Context, t bench.Target) ([]bench.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limited, over := context.WithCancel(ctx)
	defer over()
	f.over = over
	var reading sync.WaitGroup
	read := func() {
		for i := range f.Consumers {
			reading.Go(func() {
				if err := f.read(ctx, limited, f.waits[i]); err != nil {
					cancel(err)
				}
			})
		}
	}
	publish, deliver, drain := f.result(t, "publish"), f.result(t, "deliver"), f.result(t, "drain")
	m, start := bench.NewMeter(t.Processes, t.Dir), time.Now()
	if !f.Backlog {
		read()
	}
	h, err := f.publish(ctx)
	took := time.Since(start)
	f.published.Store(true)
	before := 0
	for i := range f.delivered {
		before += int(f.delivered[i].Load())
	}
	if err != nil {
		cancel(err)
	} else {
		publish.Duration(took, f.Messages, h)
		publish.Cost(m)
		deliver.Cost(m)
		deliver.Fraction = f.share()
	}
	m, start = bench.NewMeter(t.Processes, t.Dir), time.Now()
	if f.Backlog {
		read()
	}
	if f.Drain > 0 {
		end := time.AfterFunc(f.Drain, f.over)
		defer end.Stop()
	}
	reading.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return nil, fmt.Errorf("fanout: %w", cause)
	}
	drain.Duration(time.Since(start), f.deliveries()-int(f.left.Load())-before, f.waited(1))
	drain.Cost(m)
	if f.Backlog {
		return []bench.Result{publish, drain}, nil
	}
	deliver.Duration(took, before, f.waited(0))
	return []bench.Result{publish, deliver, drain}, nil
}

func (f *fanout) deliveries() (n int) {
	for _, e := range f.expected {
		n += int(e)
	}
	return n
}

func (f *fanout) result(t bench.Target, phase string) bench.Result {
	return bench.Result{
		Workload: "fanout", Phase: phase, Setup: t.Setup, Sync: t.Sync, SizeBytes: (f.SizeMin + f.SizeMax) / 2,
		Queues:        1,
		Subscriptions: f.Subscriptions, Producers: f.Producers, Window: f.Window, Consumers: f.Consumers,
		Prefetch: f.Prefetch, Filtered: f.Filtered,
	}
}

func (f *fanout) waited(phase int) *hdrhistogram.Histogram {
	all := bench.NewHistogram()
	for _, w := range f.waits {
		all.Merge(w[phase])
	}
	return all
}

func (f *fanout) withQueue(ctx context.Context, fn func() error) error {
	names := make([]string, f.Subscriptions)
	for i := range names {
		names[i] = subscriptionName(i)
		f.free <- i
	}
	if _, err := admin.New(f.client).DeleteQueue(ctx, f.queue, false); err != nil && !bench.IsNotFound(err) {
		return err
	}
	err := f.createQueue(ctx, names)
	if err == nil {
		err = fn()
	}
	if _, derr := admin.New(f.client).DeleteQueue(ctx, f.queue, false); derr != nil && err == nil {
		err = derr
	}
	return err
}

func (f *fanout) createQueue(ctx context.Context, names []string) error {
	o := admin.CreateQueueOptions{Subscriptions: names}
	if f.Filtered {
		o = admin.CreateQueueOptions{Topic: true}
	}
	if _, _, err := admin.New(f.client).CreateQueue(ctx, f.queue, o); err != nil || !f.Filtered {
		return err
	}
	order := bench.Order{Parts: f.Parts}
	for i, name := range names {
		o := admin.SubscriptionOptions{Filter: order.PartFilter(i)}
		if _, _, err := admin.New(f.client).CreateSubscription(ctx, f.queue, name, o); err != nil {
			return err
		}
	}
	return nil
}

func subscriptionName(i int) string { return fmt.Sprintf("s%04d", i) }

func (f *fanout) publish(ctx context.Context) (*hdrhistogram.Histogram, error) {
	sizes := make([]int, f.Messages)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range sizes {
		sizes[i] = f.SizeMin + rng.IntN(f.SizeMax-f.SizeMin+1)
	}
	return bench.PublishNew(ctx, f.client, []string{f.queue}, bench.PublishOptions{
		Messages: f.Messages, Producers: f.Producers, Window: f.Window, Sizes: sizes, Order: bench.Order{Parts: f.Parts},
	})
}

// read reads subscriptions one at a time until limited ends.
func (f *fanout) read(ctx, limited context.Context, waits [2]*hdrhistogram.Histogram) error {
	for {
		select {
		case <-limited.Done():
			return nil // all messages are delivered, or the goroutine that canceled limited reports the error
		case sub := <-f.free:
			if err := f.turn(ctx, limited, sub, waits); err != nil {
				return err
			}
			if f.delivered[sub].Load() < f.expected[sub] { // otherwise nothing is left to read
				f.free <- sub
			}
		}
	}
}

// turn reads messages of one subscription. It returns after Interval messages if there are fewer consumers than
// subscriptions, and after emptyTimeout without a message.
func (f *fanout) turn(ctx, limited context.Context, sub int, waits [2]*hdrhistogram.Histogram) (err error) {
	c, err := f.client.Consume(ctx, f.queue,
		client.ConsumerOptions{Subscription: subscriptionName(sub), Prefetch: f.Prefetch})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	// To save CPU time, which the nodes need as well, one timer is reset occasionally, instead of a timer per message.
	limit, leave := context.WithCancel(limited)
	defer leave()
	timer, set := time.AfterFunc(emptyTimeout, leave), time.Now()
	defer timer.Stop()
	for got := 0; got < f.Interval || f.Consumers >= f.Subscriptions; got++ {
		start := time.Now()
		if start.Sub(set) > emptyTimeout/4 {
			timer.Reset(emptyTimeout)
			set = start
		}
		d, err := c.Receive(limit)
		if limit.Err() != nil && err != nil {
			break // no message for now, or the measurement has ended
		}
		if err != nil {
			return err
		}
		phase := 0
		if f.published.Load() {
			phase = 1
		}
		bench.Record(waits[phase], time.Since(start))
		if err := d.Ack(); err != nil {
			return err
		}
		f.delivered[sub].Add(1)
		if f.left.Add(-1) == 0 {
			f.over()
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return c.Flush(ctx)
}

// share returns the ratio of the deliveries of the least and the most served subscription.
func (f *fanout) share() float64 {
	least, most := f.delivered[0].Load(), int64(1)
	for i := range f.delivered {
		n := f.delivered[i].Load()
		least, most = min(least, n), max(most, n)
	}
	return float64(least) / float64(most)
}
