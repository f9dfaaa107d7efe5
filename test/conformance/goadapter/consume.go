// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/client"
)

func (a *adapter) consume(ctx context.Context, r *request) (later, error) {
	c, err := named(a, a.clients, r.Client)
	if err != nil {
		return nil, err
	}
	return func() (any, error) {
		ctx, cancel := r.within(ctx)
		defer cancel()
		consumer, err := c.Consume(ctx, r.Queue, client.ConsumerOptions{
			Subscription: r.Subscription, Filter: r.Filter, Prefetch: r.Prefetch,
		})
		if err != nil {
			return nil, err
		}
		put(a, a.consumers, r.Consumer, consumer)
		return done{}, nil
	}, nil
}

func (a *adapter) receive(ctx context.Context, r *request) (later, error) {
	consumer, err := named(a, a.consumers, r.Consumer)
	if err != nil {
		return nil, err
	}
	return func() (any, error) {
		ctx, cancel := r.within(ctx)
		defer cancel()
		d, err := consumer.Receive(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			return done{}, nil
		}
		if err != nil {
			return nil, err
		}
		a.mu.Lock()
		a.numbers[r.Consumer]++
		h := held{Consumer: r.Consumer, Delivery: a.numbers[r.Consumer]}
		a.deliveries[h.key()] = d
		a.mu.Unlock()
		return map[string]any{"delivery": h.Delivery, "message": fromStored(d.Stored)}, nil
	}, nil
}

func (a *adapter) answer(ctx context.Context, r *request) (later, error) {
	d, err := named(a, a.deliveries, held{Consumer: r.Consumer, Delivery: r.Delivery}.key())
	if err != nil {
		return nil, err
	}
	switch {
	case r.How == "ack":
		_ = d.Ack() // consumer_flush reports the outcome
	case r.How == "reject":
		_ = d.Reject()
	case r.How == "nack" && r.DelayMS > 0:
		_ = d.NackAfter(time.Duration(r.DelayMS) * time.Millisecond)
	case r.How == "nack":
		_ = d.Nack()
	case r.How == "extend":
		return func() (any, error) {
			ctx, cancel := r.within(ctx)
			defer cancel()
			return done{}, d.Extend(ctx)
		}, nil
	default:
		return nil, fmt.Errorf("unsupported settlement %q", r.How)
	}
	return func() (any, error) { return done{}, nil }, nil
}

// endOf closes the consumer for the op consumer_close. Otherwise, it waits until all settlements of the consumer are
// confirmed.
func (a *adapter) endOf(ctx context.Context, r *request) (later, error) {
	consumer, err := named(a, a.consumers, r.Consumer)
	if err != nil {
		return nil, err
	}
	return func() (any, error) {
		if r.Op == "consumer_close" {
			return done{}, consumer.Close()
		}
		ctx, cancel := r.within(ctx)
		defer cancel()
		return done{}, consumer.Flush(ctx)
	}, nil
}
