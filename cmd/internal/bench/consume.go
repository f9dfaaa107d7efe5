// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lockstep-mq/lockstep/client"
)

// ConsumeOptions configures a consume measurement.
type ConsumeOptions struct {
	SizeBytes int
	// Messages is the total number of messages, which are published before the measurement.
	Messages  int
	Consumers int
	// Queues is the number of queues over which messages and consumers are distributed.
	Queues   int
	Prefetch int
	Order
}

// Consume measures the draining of filled queues, until all acknowledgements are confirmed. A latency is the time that
// a consumer waited for its next message.
func Consume(ctx context.Context, t Target, o ConsumeOptions) (Result, error) {
	r := Result{
		Workload: "consume", Phase: "drain", Setup: t.Setup, Sync: t.Sync,
		SizeBytes: o.SizeBytes, Queues: o.Queues, Consumers: o.Consumers, Prefetch: o.Prefetch,
	}
	names := QueueNames(o.Queues)
	err := withConfigured(ctx, t.Client, names, o.config(), func() error {
		if err := Fill(ctx, t.Client, names, o); err != nil {
			return err
		}
		return DrainQueues(ctx, t, names, o, &r)
	})
	return r, err
}

// DrainQueues drains the queues with o.Consumers, and sets the rate, the latencies and the resource usage in r.
func DrainQueues(ctx context.Context, t Target, queues []string, o ConsumeOptions, r *Result) (err error) {
	m, start := NewMeter(t.Processes, t.Dir), time.Now()
	consumers, end, err := NewConsumers(ctx, t.Client, queues, o.Consumers, o.Prefetch)
	defer func() { err = errors.Join(err, end()) }()
	if err != nil {
		return err
	}
	h, err := Drain(ctx, consumers, o.Messages)
	if err != nil {
		return err
	}
	r.Duration(time.Since(start), o.Messages, h)
	r.Cost(m)
	return nil
}

// NewConsumers creates n consumers, distributed round-robin over the queues. end closes the created consumers. It is
// never nil, even after an error.
func NewConsumers(ctx context.Context, c *client.Client, queues []string, n, prefetch int,
) (consumers []*client.Consumer, end func() error, err error) {
	end = func() (err error) {
		for _, c := range consumers {
			err = errors.Join(err, c.Close())
		}
		return err
	}
	for i := range n {
		one, err := c.Consume(ctx, queues[i%len(queues)], client.ConsumerOptions{Prefetch: prefetch})
		if err != nil {
			return consumers, end, err
		}
		consumers = append(consumers, one)
	}
	return consumers, end, nil
}

// Fill publishes o.Messages messages to the queues.
func Fill(ctx context.Context, c *client.Client, queues []string, o ConsumeOptions) error {
	const window = 4096
	p := PublishOptions{
		SizeBytes: o.SizeBytes, Messages: o.Messages, Producers: len(queues), Window: window,
		Queues: len(queues), Order: o.Order,
	}
	_, err := PublishNew(ctx, c, queues, p)
	return err
}

// Drain receives and acknowledges the given number of messages, waits for the confirmations, and returns the times
// that the consumers waited for their messages.
func Drain(ctx context.Context, consumers []*client.Consumer, messages int) (*hdrhistogram.Histogram, error) {
	receive, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	finished := fmt.Errorf("all %d messages received", messages)
	var received atomic.Int64
	var wg sync.WaitGroup
	histograms := make([]*hdrhistogram.Histogram, len(consumers))
	for i, c := range consumers {
		h := NewHistogram()
		histograms[i] = h
		wg.Go(func() {
			for {
				start := time.Now()
				d, err := c.Receive(receive)
				if err != nil {
					stop(err)
					break
				}
				Record(h, time.Since(start))
				if err := d.Ack(); err != nil {
					stop(err)
					break
				}
				if received.Add(1) == int64(messages) {
					stop(finished)
				}
			}
			if err := c.Flush(ctx); err != nil {
				stop(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(receive); err != finished { //nolint:errorlint // compares the identity
		return nil, fmt.Errorf("consume: %w", err)
	}
	all := histograms[0]
	for _, h := range histograms[1:] {
		all.Merge(h)
	}
	return all, nil
}
