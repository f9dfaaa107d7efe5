// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"

	"google.golang.org/grpc"
)

// Tracer receives publishes and deliveries to record them as trace spans. Package client/tracing implements it with
// OpenTelemetry. Its methods must not block.
type Tracer interface {
	// Publish is called before each publish of a producer, with the context of the call. It is not called for the
	// publishes of a [Txn]. It returns the messages to send: ms, which Publish must not modify, or copies with
	// properties that identify the span. If done is not nil, it is called once with the outcome.
	Publish(ctx context.Context, queue string, ms []Message) (send []Message, done func(Receipt, error))
	// Deliver is called for each delivery that Receive returns, and returns the trace of the delivery. If the result
	// is nil, the delivery is not recorded.
	Deliver(d *Delivery) DeliveryTrace
	// DialOptions returns options that are added to the dial options of each connection.
	DialOptions() []grpc.DialOption
}

// DeliveryTrace is the trace record of a delivery.
type DeliveryTrace interface {
	// Into returns a context with the span of the delivery.
	Into(ctx context.Context) context.Context
	// Answered is called at most once, when the client has accepted an answer of the application. how is "ack", "nack"
	// or "reject". The client calls it while it holds a lock: Answered must not call methods of the delivery or the
	// consumer.
	Answered(how string)
}

// Context returns a context with the trace span of this delivery, if any, as parent.
func (d *Delivery) Context(ctx context.Context) context.Context {
	if t := d.recorded(); t != nil {
		return t.Into(ctx)
	}
	return ctx
}

func (d *Delivery) recorded() DeliveryTrace {
	d.consumer.mu.Lock() // NackAfter may be called concurrently
	defer d.consumer.mu.Unlock()
	if d.more == nil {
		return nil
	}
	return d.more.trace
}

// traceWith starts the trace of a delivery that the application does not have yet.
func (d *Delivery) traceWith(t Tracer) {
	if trace := t.Deliver(d); trace != nil {
		d.more = &deliveryExtras{trace: trace}
	}
}

// String returns the name passed to DeliveryTrace.Answered.
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
