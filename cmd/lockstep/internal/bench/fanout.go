package bench

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
)

// FanoutOptions say how one queue with many subscriptions is loaded.
type FanoutOptions struct {
	// Subscriptions of the queue: each gets every message, which is stored once.
	Subscriptions int
	// Producers publish at the same time, with Window messages of each unanswered.
	Producers, Window int
	// Consumers at the same time. With fewer than Subscriptions they take turns: each one reads Turn messages of a
	// subscription at most and goes on to the one that has waited longest, so that the subscriptions stand at different places.
	Consumers, Turn, Prefetch int
	// Messages in all, with bodies of SizeMin to SizeMax bytes.
	Messages, SizeMin, SizeMax int
	// Backlog: everything is published before the consumers begin.
	Backlog bool
}

// patience is how long a consumer waits for a message before it leaves a subscription that seems to have no more.
const patience = 20 * time.Millisecond

// fanout is one run.
type fanout struct {
	FanoutOptions
	client *client.Client
	queue  string
	// free has the subscriptions that nobody reads, the one that has waited longest first.
	free      chan int
	delivered []atomic.Int64 // by subscription
	left      atomic.Int64   // deliveries to come
	done      chan struct{}  // closed when left is 0
}

// Fanout measures publishing to, and at the same time delivering from, a queue with many subscriptions. Two results: of
// "publish", a latency is the time to the acknowledgement; of "deliver", the time that a consumer waited for its next message,
// and Share is what the subscription that was served least had, as a part of the one that was served most, at the moment when the
// last message was published.
func Fanout(ctx context.Context, t Target, o FanoutOptions, report func(Result) error) error {
	f := &fanout{
		FanoutOptions: o, client: t.Client, queue: queueNames(1)[0], free: make(chan int, o.Subscriptions),
		delivered: make([]atomic.Int64, o.Subscriptions), done: make(chan struct{}),
	}
	f.left.Store(int64(o.Messages) * int64(o.Subscriptions))
	result := func(phase string) Result {
		return Result{
			Workload: "fanout", Phase: phase, Setup: t.Setup, Sync: t.Sync, SizeBytes: (o.SizeMin + o.SizeMax) / 2, Queues: 1,
			Subscriptions: o.Subscriptions, Producers: o.Producers, Window: o.Window, Consumers: o.Consumers, Prefetch: o.Prefetch,
		}
	}
	return f.withQueue(ctx, func() error {
		published, delivered := result("publish"), result("deliver")
		m, start := newMeter(t.Processes, t.Dir), time.Now()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		var reading sync.WaitGroup
		begin := make(chan struct{}) // closed when the consumers may begin
		if !o.Backlog {
			close(begin)
		}
		waits := make([]*hdrhistogram.Histogram, o.Consumers)
		for i := range waits {
			waits[i] = newHistogram()
			reading.Go(func() {
				select {
				case <-begin:
				case <-ctx.Done():
				}
				if err := f.read(ctx, waits[i]); err != nil {
					cancel(err)
				}
			})
		}
		h, err := f.publish(ctx)
		if err != nil {
			cancel(err)
		} else {
			published.took(time.Since(start), o.Messages, h)
			published.cost(m)
			delivered.Share = f.share()
		}
		if o.Backlog {
			m, start, delivered.Share = newMeter(t.Processes, t.Dir), time.Now(), 0
			close(begin)
		}
		reading.Wait()
		if cause := context.Cause(ctx); cause != nil {
			return fmt.Errorf("fanout: %w", cause)
		}
		for _, w := range waits[1:] {
			waits[0].Merge(w)
		}
		delivered.took(time.Since(start), o.Messages*o.Subscriptions, waits[0])
		delivered.cost(m)
		return errors.Join(report(published), report(delivered))
	})
}

// withQueue runs fn with the queue and its subscriptions.
func (f *fanout) withQueue(ctx context.Context, fn func() error) error {
	names := make([]string, f.Subscriptions)
	for i := range names {
		names[i] = subscriptionName(i)
		f.free <- i
	}
	if _, err := f.client.DeleteQueue(ctx, f.queue, false); err != nil && !isNotFound(err) {
		return err
	}
	if _, _, err := f.client.CreateQueue(ctx, f.queue, client.CreateQueueOptions{Subscriptions: names}); err != nil {
		return err
	}
	err := fn()
	if _, derr := f.client.DeleteQueue(ctx, f.queue, false); derr != nil && err == nil {
		err = derr
	}
	return err
}

func subscriptionName(i int) string { return fmt.Sprintf("s%04d", i) }

// publish publishes all messages.
func (f *fanout) publish(ctx context.Context) (*hdrhistogram.Histogram, error) {
	sizes := make([]int, f.Messages)
	rng := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // sizes of a benchmark
	for i := range sizes {
		sizes[i] = f.SizeMin + rng.IntN(f.SizeMax-f.SizeMin+1)
	}
	producers, err := newProducers(ctx, f.client, f.Producers)
	if err != nil {
		return nil, err
	}
	h, err := publishAll(ctx, producers, []string{f.queue}, PublishOptions{Messages: f.Messages, Producers: f.Producers, Window: f.Window, Sizes: sizes})
	for _, p := range producers {
		err = errors.Join(err, p.Close())
	}
	return h, err
}

// read is one consumer: it reads a subscription after the other until all is delivered.
func (f *fanout) read(ctx context.Context, waits *hdrhistogram.Histogram) error {
	for {
		select {
		case <-f.done:
			return nil
		case <-ctx.Done():
			return nil // whoever ended it says why
		case sub := <-f.free:
			if err := f.turn(ctx, sub, waits); err != nil {
				return err
			}
			f.free <- sub
		}
	}
}

// turn reads a part of one subscription.
func (f *fanout) turn(ctx context.Context, sub int, waits *hdrhistogram.Histogram) (err error) {
	c, err := f.client.Consume(ctx, f.queue, client.ConsumerOptions{Subscription: subscriptionName(sub), Prefetch: f.Prefetch})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	for got := 0; got < f.Turn || f.Consumers >= f.Subscriptions; got++ {
		limit, cancel := context.WithTimeout(ctx, patience)
		start := time.Now()
		d, err := c.Receive(limit)
		cancel()
		if limit.Err() != nil && err != nil {
			break // nothing more for now, or all is over
		}
		if err != nil {
			return err
		}
		record(waits, time.Since(start))
		d.Ack()
		f.delivered[sub].Add(1)
		if f.left.Add(-1) == 0 {
			close(f.done)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return c.Flush(ctx)
}

// share compares the subscription that was served least with the one that was served most.
func (f *fanout) share() float64 {
	least, most := f.delivered[0].Load(), int64(1)
	for i := range f.delivered {
		n := f.delivered[i].Load()
		least, most = min(least, n), max(most, n)
	}
	return float64(least) / float64(most)
}
