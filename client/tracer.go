// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"google.golang.org/grpc"
)

// Tracer is told of publishes and deliveries, to record them as spans of traces; package client/tracing makes one for
// OpenTelemetry. Its methods are called by the goroutines that publish and receive, and must not block.
type Tracer interface {
	// Publish is called with each publish of a producer before it is sent; ctx is that of the call. It returns what is to
	// be sent: ms, or copies of them with properties that name the span. It must not change ms. done is called once with
	// the outcome; nil if that is not of interest.
	Publish(ctx context.Context, queue string, ms []Message) (send []Message, done func(Receipt, error))
	// Deliver is called with each delivery that Receive returns. Nil: it is not recorded.
	Deliver(d *Delivery) DeliveryTrace
	// DialOptions are added to those of each connection.
	DialOptions() []grpc.DialOption
}

// DeliveryTrace is what a Tracer records of a delivery.
type DeliveryTrace interface {
	// Into returns a context in which the delivery is the span that others are made below.
	Into(ctx context.Context) context.Context
	// Answered is called once, when the application has answered: with "ack", "nack" or "reject".
	Answered(how string)
}

// Context returns a context in which what the application does for this delivery is traced below it; ctx itself if the
// delivery is not traced.
func (d *Delivery) Context(ctx context.Context) context.Context {
	if t := d.recorded(); t != nil {
		return t.Into(ctx)
	}
	return ctx
}

// recorded is what is recorded of the delivery; nil for nothing.
func (d *Delivery) recorded() DeliveryTrace {
	d.consumer.mu.Lock() // NackAfter may be called meanwhile
	defer d.consumer.mu.Unlock()
	if d.more == nil {
		return nil
	}
	return d.more.trace
}

// traceWith begins to record a delivery that the application does not have yet.
func (d *Delivery) traceWith(t Tracer) {
	if trace := t.Deliver(d); trace != nil {
		d.more = &deliveryExtras{trace: trace}
	}
}

// String is what a DeliveryTrace gets.
func (k answerKind) String() string {
	switch k {
	case ackAnswer:
		return "ack"
	case nackAnswer:
		return "nack"
	case rejectAnswer:
		return "reject"
	case noAnswer:
	}
	return ""
}

// tracePublish has a publish traced. It returns what to send, and what gets the outcome.
func (p *Producer) tracePublish(
	ctx context.Context, queue string, ms []Message, done func(Receipt, error),
) ([]Message, func(Receipt, error)) {
	send, traced := p.client.opts.Tracer.Publish(ctx, queue, ms)
	if traced == nil {
		return send, done
	}
	return send, func(r Receipt, err error) {
		traced(r, err)
		if done != nil {
			done(r, err)
		}
	}
}
