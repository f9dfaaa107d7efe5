// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
)

// The examples need a pair, so most of them are not run. Package test/goclient runs similar programs.

// Publish a message, and consume messages until the context ends.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Open(ctx, "lockstep://node-a:7420,node-b:7420")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	receipt, err := c.Publish(ctx, "orders", client.Message{Body: []byte("one coffee")})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("stored on every in-sync node, sequence", receipt.Sequence)

	consumer, err := c.Consume(ctx, "orders", client.ConsumerOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer consumer.Close()
	err = consumer.Run(ctx, func(_ context.Context, d *client.Delivery) error {
		fmt.Printf("received %q\n", d.Body)
		return nil // acknowledges the message
	}, 4)
	if err != nil {
		fmt.Println(err)
		return
	}
}

// The options of a URL can be completed before the client is opened.
func ExampleParseURL() {
	o, err := client.ParseURL("lockstep://node-a,node-b:7421?fail-fast=true")
	o.MaxMessageBytes = 1 << 20
	fmt.Println(o.Addresses, o.FailFast, err)
	// Output: [node-a:7420 node-b:7421] true <nil>
}

// A message has a content type and a reply address; its properties can be numbers.
func ExampleMessage() {
	var c *client.Client
	_, err := c.Publish(context.Background(), "orders", client.Message{
		Body: []byte(`{"item": "tea"}`), ContentType: "application/json", Subject: "order.created",
		CorrelationID: "basket-17", ReplyTo: "answers", Values: map[string]any{"total": 3.2, "paid": true},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
}

// A producer pipelines publishes: thousands of messages are in flight, and their order is preserved.
func ExampleProducer_PublishAsync() {
	ctx := context.Background()
	var c *client.Client
	producer, err := c.NewProducer(ctx, client.ProducerOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer producer.Close()
	var last *client.Pending
	for i := range 10_000 {
		last = producer.PublishAsync(ctx, "events", client.Message{Body: fmt.Appendf(nil, "event %d", i)})
	}
	if err := producer.Flush(ctx); err != nil { // err contains the errors of all publishes
		fmt.Println(err)
		return
	}
	receipt, err := last.Wait(ctx)
	fmt.Println("stored up to sequence", receipt.Sequence, err)
}

// The error of a handler requeues its message; Reject dead-letters a message that can never be processed.
func ExampleConsumer_Run() {
	ctx := context.Background()
	var consumer *client.Consumer
	errInvalidOrder := errors.New("invalid order")
	process := func(context.Context, []byte) error { return errInvalidOrder }
	err := consumer.Run(ctx, func(ctx context.Context, d *client.Delivery) error {
		err := process(ctx, d.Body)
		if errors.Is(err, errInvalidOrder) {
			return client.Reject(err)
		}
		return err
	}, 16)
	if err != nil {
		fmt.Println(err)
		return
	}
}

// All iterates over the messages of a subscription.
func ExampleConsumer_All() {
	ctx := context.Background()
	var consumer *client.Consumer
	for d, err := range consumer.All(ctx) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s\n", d.Body)
		if err := d.Ack(); err != nil { // asynchronous; Flush waits for the confirmations
			fmt.Println(err)
		}
	}
	if err := consumer.Flush(context.WithoutCancel(ctx)); err != nil {
		fmt.Println(err)
		return
	}
}

// Messages are consumed and their results published exactly once, even if a message is delivered several times.
func ExampleTxn() {
	ctx := context.Background()
	var c *client.Client
	var consumer *client.Consumer
	err := consumer.Run(ctx, func(ctx context.Context, d *client.Delivery) error {
		invoice := client.Message{Body: append([]byte("invoice for "), d.Body...)}
		_, err := c.Begin().Take(d).Publish("invoices", invoice).Commit(ctx)
		return err // client.ErrProcessed means that another consumer has processed the message
	}, 4)
	if err != nil {
		fmt.Println(err)
		return
	}
}

// After an unknown outcome, another Commit of the same transaction is safe: the transaction is committed at most
// once.
func ExampleTxn_Commit() {
	var c *client.Client
	t := c.Begin().Publish("orders", client.Message{Body: []byte("one coffee")})
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		_, err := t.Commit(ctx)
		cancel()
		if !errors.Is(err, client.ErrOutcomeUnknown) || errors.Is(err, client.ErrOutcomeLost) {
			fmt.Println(err)
			return
		}
	}
}

// A two-phase commit survives crashes of the coordinator and of both nodes between its phases.
func ExampleTxn_Prepare() {
	ctx := context.Background()
	var c *client.Client
	t := c.Begin().Publish("shipped", client.Message{Body: []byte("order 4711")})
	if err := t.Prepare(ctx, "order/4711"); err != nil {
		fmt.Println(err)
		return
	}
	if _, err := admin.New(c).CommitPrepared(ctx, "order/4711"); err != nil { // retried until it succeeds
		fmt.Println(err)
		return
	}
	for p, err := range admin.New(c).ListPrepared(ctx) { // recovery of the coordinator
		fmt.Println(p.XID, p.Queues, err)
	}
}

// Errors are distinguished with errors.Is.
func ExampleError() {
	var c *client.Client
	_, err := c.Publish(context.Background(), "orders", client.Message{Body: []byte("x")})
	var refused *client.Error
	switch {
	case errors.Is(err, client.ErrOutcomeUnknown):
		fmt.Println("outcome unknown")
	case errors.Is(err, client.ErrQueueNotFound):
		fmt.Println("queue not found")
	case errors.As(err, &refused):
		fmt.Println(refused.Address, refused.Reason)
	}
}
