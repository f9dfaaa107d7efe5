// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
)

// MixedOptions configures concurrent publishing and consuming.
type MixedOptions struct {
	SizeBytes int
	// Consumers of the same queue share its messages.
	Queues, Producers, Consumers int
	// Window is the number of messages in flight per producer; 1 is synchronous.
	Window   int
	Prefetch int
	// Backlog is the number of messages published before the measurement.
	Backlog  int
	Duration time.Duration
}

// Mixed measures concurrent publishing and consuming. A latency of "publish" is the time to the acknowledgement, of
// "deliver" the time that a consumer waited for its next message.
func Mixed(ctx context.Context, t bench.Target, o MixedOptions) (publish, deliver bench.Result, err error) {
	publish = bench.Result{
		Workload: "mixed", Phase: "publish", Setup: t.Setup, Sync: t.Sync, SizeBytes: o.SizeBytes, Queues: o.Queues,
		Producers: o.Producers, Window: o.Window, Consumers: o.Consumers, Prefetch: o.Prefetch, Stored: o.Backlog,
	}
	deliver = publish
	deliver.Phase = "deliver"
	names := bench.QueueNames(o.Queues)
	err = bench.WithQueues(ctx, t.Client, names, func() error {
		if o.Backlog > 0 {
			filled := bench.ConsumeOptions{SizeBytes: o.SizeBytes, Messages: o.Backlog}
			if err := bench.Fill(ctx, t.Client, names, filled); err != nil {
				return err
			}
		}
		return mixed(ctx, t, o, names, &publish, &deliver)
	})
	return publish, deliver, err
}

func mixed(
	ctx context.Context, t bench.Target, o MixedOptions, names []string, publish, deliver *bench.Result,
) (err error) {
	producers, err := bench.NewProducers(ctx, t.Client, o.Producers)
	if err != nil {
		return err
	}
	consumers, end, err := bench.NewConsumers(ctx, t.Client, names, o.Consumers, o.Prefetch)
	defer func() {
		err = errors.Join(err, end())
		for _, p := range producers {
			err = errors.Join(err, p.Close())
		}
	}()
	if err != nil {
		return err
	}
	m, start := bench.NewMeter(t.Processes, t.Dir), time.Now()
	load, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	limited, over := context.WithTimeout(load, o.Duration)
	defer over()
	waits := make([]*hdrhistogram.Histogram, len(consumers))
	var consuming sync.WaitGroup
	for i, c := range consumers {
		waits[i] = bench.NewHistogram()
		consuming.Go(func() {
			if err := receiveUntil(limited, c, waits[i]); err != nil {
				cancel(err)
			}
		})
	}
	h, err := bench.PublishAll(load, producers, names, bench.PublishOptions{
		SizeBytes: o.SizeBytes, Producers: o.Producers, Window: o.Window, Queues: o.Queues, Duration: o.Duration,
	})
	consuming.Wait()
	if err := errors.Join(err, context.Cause(load)); err != nil {
		return err
	}
	took := time.Since(start)
	for _, w := range waits[1:] {
		waits[0].Merge(w)
	}
	publish.Duration(took, int(h.TotalCount()), h)
	deliver.Duration(took, int(waits[0].TotalCount()), waits[0])
	publish.Cost(m)
	deliver.Cost(m)
	return nil
}

func receiveUntil(ctx context.Context, c *client.Consumer, h *hdrhistogram.Histogram) error {
	for {
		start := time.Now()
		d, err := c.Receive(ctx)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return nil
		}
		if err != nil {
			return err
		}
		bench.Record(h, time.Since(start))
		if err := d.Ack(); err != nil {
			return err
		}
	}
}
