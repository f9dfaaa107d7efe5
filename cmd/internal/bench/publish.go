// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/time/rate"

	"github.com/lockstep-mq/lockstep/client"
)

// IsNotFound reports whether err means that the queue does not exist.
func IsNotFound(err error) bool { return errors.Is(err, client.ErrQueueNotFound) }

// PublishOptions configures a publish measurement.
type PublishOptions struct {
	SizeBytes int
	Messages  int
	// Producers is the number of producers; each has its own pipeline.
	Producers int
	// Publishers is the number of goroutines that share the producers; 0 means one per producer.
	Publishers int
	// Window is the maximum number of messages in flight per publisher; 1 is synchronous.
	Window int
	// Queues is the number of queues over which the producers are distributed.
	Queues int
	// Sizes, if not empty, contains the body size of each message, in place of SizeBytes.
	Sizes []int
	Order
	// EachToNext sends message n to queue n modulo the number of queues. Otherwise each publisher uses one queue, which
	// other publishers may share.
	EachToNext bool
	// Duration, if not 0, is the duration of the measurement, regardless of Messages.
	Duration time.Duration
	// Rate is the total number of messages per second; 0 means unlimited.
	Rate float64
	// ExpiresAt is the expiry time of the messages; the zero time means that they do not expire.
	ExpiresAt time.Time
	// MessageIDs sets the message ID to the number of the message.
	MessageIDs bool
}

// more reports whether message n, counted from 1, may be published. until is the end of Duration.
func (o *PublishOptions) more(n int64, now, until time.Time) bool {
	if o.Duration > 0 {
		return now.Before(until)
	}
	return n <= int64(o.Messages)
}

// pace returns a function that waits until the next message is due according to Rate, and returns the current time.
func (o *PublishOptions) pace() func(context.Context) (time.Time, error) {
	if o.Rate <= 0 {
		return func(context.Context) (time.Time, error) { return time.Now(), nil }
	}
	limiter := rate.NewLimiter(rate.Limit(o.Rate), 1)
	return func(ctx context.Context) (time.Time, error) {
		err := limiter.Wait(ctx)
		return time.Now(), err
	}
}

// messages returns a function that creates message n, counted from 1. Messages of the same size have the same body.
func (o *PublishOptions) messages() func(n int64) client.Message {
	made := make(map[int]client.Message)
	return func(n int64) client.Message {
		size := o.SizeBytes
		if len(o.Sizes) > 0 {
			size = o.Sizes[n-1]
		}
		m, ok := made[size]
		if !ok {
			m = client.Message{Body: Body(size), ExpiresAt: o.ExpiresAt}
			made[size] = m
		}
		if o.MessageIDs {
			m.MessageID = strconv.FormatInt(n, 10)
		}
		o.label(&m, n)
		return m
	}
}

// NewProducers opens n producers.
func NewProducers(ctx context.Context, c *client.Client, n int) ([]*client.Producer, error) {
	producers := make([]*client.Producer, n)
	for i := range producers {
		var err error
		if producers[i], err = c.NewProducer(ctx, client.ProducerOptions{MaxPendingBytes: 64 << 20}); err != nil {
			return nil, err
		}
	}
	return producers, nil
}

// Publish measures publishing. A latency is the time from the call to the acknowledgement.
func Publish(ctx context.Context, t Target, o PublishOptions) (Result, error) {
	return PublishInto(ctx, t, o, func(*Result) error { return nil })
}

// PublishInto is like Publish, but calls after with the result before it deletes the queues.
func PublishInto(ctx context.Context, t Target, o PublishOptions, after func(*Result) error) (Result, error) {
	r := Result{
		Workload: "publish", Phase: "pipelined", Setup: t.Setup, Sync: t.Sync,
		SizeBytes: o.SizeBytes, Queues: o.Queues, Producers: o.Producers, Publishers: o.Publishers, Window: o.Window,
	}
	if o.Window == 1 {
		r.Phase = "synchronous"
	}
	names := QueueNames(o.Queues)
	err := withConfigured(ctx, t.Client, names, o.config(), func() error {
		producers, err := NewProducers(ctx, t.Client, o.Producers)
		if err != nil {
			return err
		}
		for i := range producers { // the first publish opens the connection
			if _, err := producers[i].Publish(ctx, names[i%o.Queues],
				client.Message{Body: Body(o.SizeBytes)}); err != nil {
				return err
			}
		}
		m, start := NewMeter(t.Processes, t.Dir), time.Now()
		h, err := PublishAll(ctx, producers, names, o)
		if err != nil {
			return err
		}
		r.Duration(time.Since(start), int(h.TotalCount()), h)
		r.Cost(m)
		if err := after(&r); err != nil {
			return err
		}
		for _, p := range producers {
			if err := p.Close(); err != nil {
				return err
			}
		}
		return nil
	})
	return r, err
}

// PublishAll publishes o.Messages messages, or for o.Duration, and returns the latencies. The producers share one
// counter of message numbers.
func PublishAll(
	ctx context.Context, producers []*client.Producer, queues []string, o PublishOptions,
) (*hdrhistogram.Histogram, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	pace := o.pace()
	histograms := make([]*hdrhistogram.Histogram, max(o.Publishers, len(producers)))
	for i := range histograms {
		p, h := producers[i%len(producers)], NewHistogram()
		own := queues[i%len(producers)%len(queues)]
		queue := func(n int64) string {
			if o.EachToNext {
				return queues[n%int64(len(queues))]
			}
			return own
		}
		histograms[i] = h
		wg.Go(func() {
			var err error
			if o.Window == 1 {
				err = publishOneByOne(ctx, p, queue, o, &next, pace, h)
			} else {
				err = publishPipelined(ctx, p, queue, o, &next, pace, h)
			}
			if err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, fmt.Errorf("publish: %w", err)
	}
	all := histograms[0]
	for _, h := range histograms[1:] {
		all.Merge(h)
	}
	return all, nil
}

// PublishNew is PublishAll with o.Producers new producers.
func PublishNew(
	ctx context.Context, c *client.Client, queues []string, o PublishOptions,
) (*hdrhistogram.Histogram, error) {
	producers, err := NewProducers(ctx, c, o.Producers)
	if err != nil {
		return nil, err
	}
	h, err := PublishAll(ctx, producers, queues, o)
	for _, p := range producers {
		err = errors.Join(err, p.Close())
	}
	return h, err
}

func publishOneByOne(ctx context.Context, p *client.Producer, queue func(n int64) string, o PublishOptions,
	next *atomic.Int64, pace func(context.Context) (time.Time, error), h *hdrhistogram.Histogram,
) error {
	message := o.messages()
	until := time.Now().Add(o.Duration)
	for n, now := next.Add(1), time.Now(); o.more(n, now, until); n, now = next.Add(1), time.Now() {
		m := message(n)
		start, err := pace(ctx)
		if err != nil {
			return err
		}
		if _, err := p.Publish(ctx, queue(n), m); err != nil {
			return err
		}
		Record(h, time.Since(start))
	}
	return nil
}

func publishPipelined(ctx context.Context, p *client.Producer, queue func(n int64) string, o PublishOptions,
	next *atomic.Int64, pace func(context.Context) (time.Time, error), h *hdrhistogram.Histogram,
) error {
	message := o.messages()
	type sent struct {
		pending *client.Pending
		at      time.Time
	}
	window, order := make(chan struct{}, o.Window), make(chan sent, o.Window)
	failed := make(chan error, 1)
	var completed sync.WaitGroup
	completed.Go(func() {
		for s := range order { // publishes complete in order
			_, err := s.pending.Wait(ctx)
			Record(h, time.Since(s.at))
			if err != nil {
				select {
				case failed <- err:
				default:
				}
			}
			<-window
		}
	})
	defer completed.Wait()
	defer close(order)
	until := time.Now().Add(o.Duration)
	for n, now := next.Add(1), time.Now(); o.more(n, now, until); n, now = next.Add(1), time.Now() {
		select {
		case window <- struct{}{}:
		case err := <-failed:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
		m := message(n)
		start, err := pace(ctx)
		if err != nil {
			return err
		}
		order <- sent{p.PublishAsync(ctx, queue(n), m), start}
	}
	return p.Flush(ctx)
}
