// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
)

const confirmEvery = 256

type workload struct {
	ledger   *ledger
	seed     uint64
	producer *client.Producer
	consumer *client.Consumer
	failed   chan error // capacity 1: the first error

	stopPublishing func()
	stopConsuming  context.CancelFunc
	publishing     sync.WaitGroup
	answering      sync.WaitGroup
	consuming      sync.WaitGroup
}

func startWorkload(ctx context.Context, c *client.Client, l *ledger, seed uint64, rate int) (*workload, error) {
	w := &workload{ledger: l, seed: seed, failed: make(chan error, 1)}
	var err error
	if w.producer, err = c.NewProducer(ctx, client.ProducerOptions{}); err != nil {
		return nil, err
	}
	if w.consumer, err = c.Consume(ctx, queueName, client.ConsumerOptions{}); err != nil {
		return nil, err
	}
	stop := make(chan struct{})
	consume, stopConsuming := context.WithCancel(ctx)
	w.stopPublishing, w.stopConsuming = sync.OnceFunc(func() { close(stop) }), stopConsuming
	w.publishing.Go(func() { w.report(w.publish(ctx, stop, rate)) })
	w.consuming.Go(func() { w.report(w.consume(consume)) })
	return w, nil
}

func (w *workload) report(err error) {
	if err == nil {
		return
	}
	select {
	case w.failed <- err:
	default:
	}
}

// run waits for d, or until the workload fails.
func (w *workload) run(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case err := <-w.failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (w *workload) failure() error {
	select {
	case err := <-w.failed:
		return err
	default:
		return nil
	}
}

// publish publishes rate messages per second until stop is closed. It catches up after a period without an active node.
func (w *workload) publish(ctx context.Context, stop <-chan struct{}, rate int) error {
	const tick = time.Millisecond
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	start, sent := time.Now(), 0
	for {
		select {
		case <-ticker.C:
		case <-stop:
			return nil
		case <-ctx.Done():
			return nil
		}
		for due := int(time.Since(start).Seconds() * float64(rate)); sent < due; sent++ {
			n := w.ledger.next()
			pending := w.producer.PublishAsync(ctx, queueName, client.Message{Body: makeBody(w.seed, n)})
			w.answering.Go(func() {
				switch r, err := pending.Wait(ctx); {
				case err == nil:
					w.ledger.acknowledge(n, r)
				case ctx.Err() == nil: // not interrupted by Ctrl-C
					w.report(fmt.Errorf("message %d: %w", n, err))
				}
			})
		}
	}
}

func (w *workload) consume(ctx context.Context) error {
	var open []uint64 // acknowledged, not yet confirmed
	for {
		wait, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		d, err := w.consumer.Receive(wait)
		cancel()
		idle := errors.Is(err, context.DeadlineExceeded)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the workload has ended
		case err != nil && !idle:
			return err
		case err == nil:
			if err := w.ledger.deliver(d.Stored); err != nil {
				return err
			}
			if err := d.Ack(); err != nil {
				return err
			}
			open = append(open, d.Sequence)
		}
		if len(open) >= confirmEvery || idle && len(open) > 0 {
			if err := w.consumer.Flush(ctx); err != nil {
				if ctx.Err() != nil {
					return nil //nolint:nilerr // the workload has ended
				}
				return err
			}
			w.ledger.confirm(open)
			open = open[:0]
		}
	}
}

// finish stops publishing, and waits until all messages are acknowledged and delivered. It stops waiting if no message
// is delivered for a while. It then stops consuming.
func (w *workload) finish(ctx context.Context) error {
	w.stopPublishing()
	w.publishing.Wait()
	if err := w.producer.Flush(ctx); err != nil {
		return err
	}
	w.answering.Wait()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	// After this time without deliveries, missing messages are lost and fail the verdict.
	const silence = 5 * time.Second
	last, since := -1, time.Now()
	for {
		left := w.ledger.left()
		if left != last {
			last, since = left, time.Now()
		}
		if left == 0 || time.Since(since) > silence {
			break
		}
		select {
		case <-ticker.C:
		case err := <-w.failed:
			return err
		case <-ctx.Done():
			return fmt.Errorf("%d messages not delivered yet: %w", left, ctx.Err())
		}
	}
	// Duplicate deliveries may still arrive; check detects messages that are stored twice.
	if err := w.run(ctx, 200*time.Millisecond); err != nil {
		return err
	}
	w.stopConsuming()
	w.consuming.Wait()
	if err := w.consumer.Flush(ctx); err != nil {
		return err
	}
	return errors.Join(w.failure(), w.consumer.Close(), w.producer.Close())
}

func (w *workload) stop() {
	w.stopPublishing()
	w.stopConsuming()
	w.publishing.Wait()
	w.consuming.Wait()
}
