// SPDX-License-Identifier: Apache-2.0

package goclient_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
)

// openExample runs a real node in this process, and opens a client for it. An application passes the addresses of both
// nodes of its pair. On an error, openExample prints it, so that the example fails.
func openExample() (c *client.Client, done func()) {
	dir, err := os.MkdirTemp("", "lockstep-example-")
	if err != nil {
		panic(err)
	}
	cfg := config.Default()
	cfg.Coordinator.Type, cfg.Data.Dir, cfg.Listen, cfg.Node.Name = config.CoordinatorNone, dir, "127.0.0.1:0",
		"example"
	cfg.Disk.LowWatermark, cfg.WAL.SegmentBytes = 16<<20, 8<<20
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan string, 1), make(chan error, 1)
	go func() {
		ended <- node.Run(ctx, cfg, zap.NewNop(), node.Options{OnReady: func(r node.Ready) { ready <- r.Address }})
	}()
	var address string
	select {
	case address = <-ready:
	case err := <-ended:
		panic(err)
	}
	if c, err = client.OpenWith(ctx, client.Options{Addresses: []string{address}}); err != nil {
		panic(err)
	}
	return c, func() {
		err := c.Close()
		stop()
		if err := errors.Join(err, <-ended, os.RemoveAll(dir)); err != nil {
			fmt.Println(err)
		}
	}
}

// A client publishes a message and consumes it.
func Example() {
	c, done := openExample()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	if _, _, err := admin.New(c).CreateQueue(ctx, "orders", admin.CreateQueueOptions{IfNotExists: true}); err != nil {
		fmt.Println(err)
		return
	}
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
	delivery, err := consumer.Receive(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("received %q\n", delivery.Body)
	if err := delivery.AckSync(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// stored on every in-sync node, sequence 1
	// received "one coffee"
}

// A producer pipelines publishes: thousands of messages are in flight, and their order is preserved.
func Example_publishAsync() {
	c, done := openExample()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, _, err := admin.New(c).CreateQueue(ctx, "events", admin.CreateQueueOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	producer, err := c.NewProducer(ctx, client.ProducerOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	var last *client.Pending
	for i := range 10_000 {
		m := client.Message{Body: fmt.Appendf(nil, "event %d", i), Properties: map[string]string{"source": "example"}}
		last = producer.PublishAsync(ctx, "events", m)
	}
	if err := producer.Flush(ctx); err != nil { // contains the errors of all publishes
		fmt.Println(err)
		return
	}
	receipt, err := last.Wait(ctx)
	fmt.Println("stored up to sequence", receipt.Sequence, err)
	// Output: stored up to sequence 10000 <nil>
}

// A message can have a content type, a reply address and typed properties.
func Example_message() {
	c, done := openExample()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, _, err := admin.New(c).CreateQueue(ctx, "orders", admin.CreateQueueOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	_, err := c.Publish(ctx, "orders", client.Message{
		Body: []byte(`{"item": "tea"}`), ContentType: "application/json", Subject: "order.created",
		CorrelationID: "basket-17", ReplyTo: "answers", Values: map[string]any{"total": 3.2, "paid": true},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	consumer, err := c.Consume(ctx, "orders", client.ConsumerOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := consumer.Receive(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	d.Ack()
	fmt.Println(d.Subject, d.CorrelationID, d.ReplyTo, d.Values["total"], d.Values["paid"], consumer.Flush(ctx))
	// Output: order.created basket-17 answers 3.2 true <nil>
}

// Messages are processed exactly once, even if they are delivered several times: the acknowledgement and the result are
// committed in one transaction.
func Example_exactlyOnce() {
	c, done := openExample()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, queue := range []string{"orders", "invoices"} {
		if _, _, err := admin.New(c).CreateQueue(ctx, queue, admin.CreateQueueOptions{}); err != nil {
			fmt.Println(err)
			return
		}
	}
	for _, order := range []string{"coffee", "tea"} {
		if _, err := c.Publish(ctx, "orders", client.Message{Body: []byte(order)}); err != nil {
			fmt.Println(err)
			return
		}
	}
	consumer, err := c.Consume(ctx, "orders", client.ConsumerOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	working, stop := context.WithCancel(ctx)
	err = consumer.Run(working, func(ctx context.Context, d *client.Delivery) error {
		defer stop() // after the first message
		invoice := client.Message{Body: append([]byte("invoice for "), d.Body...)}
		_, err := c.Begin().Take(d).Publish("invoices", invoice).Commit(ctx)
		return err
	}, 1)
	fmt.Println(err)
	for m, err := range c.Browse(ctx, "invoices", client.BrowseOptions{}) {
		fmt.Printf("%s %v\n", m.Body, err)
	}
	q, err := admin.New(c).GetQueue(ctx, "orders")
	fmt.Println(q.Messages, "left", err)
	// Output:
	// <nil>
	// invoice for coffee <nil>
	// 1 left <nil>
}

// A two-phase commit survives crashes of the coordinator and of both nodes between its phases.
func Example_prepare() {
	c, done := openExample()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, _, err := admin.New(c).CreateQueue(ctx, "shipped", admin.CreateQueueOptions{}); err != nil {
		fmt.Println(err)
		return
	}
	t := c.Begin().Publish("shipped", client.Message{Body: []byte("order 4711")})
	if err := t.Prepare(ctx, "order/4711"); err != nil {
		fmt.Println(err)
		return
	}
	q, err := admin.New(c).GetQueue(ctx, "shipped")
	fmt.Println(q.Messages, "messages", err)
	for p, err := range admin.New(c).ListPrepared(ctx) { // a restarted coordinator lists its transactions
		fmt.Println(p.XID, p.Queues, err)
		_, err = admin.New(c).CommitPrepared(ctx, p.XID)
		fmt.Println(err)
	}
	_, err = admin.New(c).RollbackPrepared(ctx, "order/4711")
	fmt.Println(errors.Is(err, admin.ErrDecided))
	q, err = admin.New(c).GetQueue(ctx, "shipped")
	fmt.Println(q.Messages, "messages", err)
	// Output:
	// 0 messages <nil>
	// order/4711 [{shipped 1 0}] <nil>
	// <nil>
	// true
	// 1 messages <nil>
}

// A transaction moves a message from one queue to another atomically.
func Example_transaction() {
	c, done := openExample()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	for _, queue := range []string{"in", "out"} {
		if _, _, err := admin.New(c).CreateQueue(ctx, queue, admin.CreateQueueOptions{}); err != nil {
			fmt.Println(err)
			return
		}
	}
	if _, err := c.Publish(ctx, "in", client.Message{Body: []byte("5")}); err != nil {
		fmt.Println(err)
		return
	}
	consumer, err := c.Consume(ctx, "in", client.ConsumerOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	d, err := consumer.Receive(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := c.Begin().Ack(d).Publish("out",
		client.Message{Body: append(d.Body, " doubled is 10"...)}).Commit(ctx)
	if err != nil {
		fmt.Println(err) // after client.ErrOutcomeUnknown, Commit may be called again
		return
	}
	fmt.Println("acknowledged", result.Results[0].Changed)
	for m, err := range c.Browse(ctx, "out", client.BrowseOptions{}) {
		fmt.Printf("%s %v\n", m.Body, err)
	}
	q, err := admin.New(c).GetQueue(ctx, "in")
	fmt.Println(q.Messages, "left", err)
	// Output:
	// acknowledged 1
	// 5 doubled is 10 <nil>
	// 0 left <nil>
}

// A queue with two subscriptions stores each message once, and delivers it to both subscriptions.
func Example_subscriptions() {
	c, done := openExample()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, _, err := admin.New(c).CreateQueue(ctx, "prices", admin.CreateQueueOptions{Subscriptions: []string{"billing"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := c.Publish(ctx, "prices", client.Message{Body: []byte("tea 3.20")}); err != nil {
		fmt.Println(err)
		return
	}
	o := admin.SubscriptionOptions{Start: admin.StartEarliest}
	if _, _, err := admin.New(c).CreateSubscription(ctx, "prices", "audit", o); err != nil {
		fmt.Println(err)
		return
	}
	for _, name := range []string{"billing", "audit"} {
		consumer, err := c.Consume(ctx, "prices", client.ConsumerOptions{Subscription: name})
		if err != nil {
			fmt.Println(err)
			return
		}
		d, err := consumer.Receive(ctx)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s: %s\n", name, d.Body)
		d.Ack()
		if err := consumer.Flush(ctx); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// billing: tea 3.20
	// audit: tea 3.20
}

// Errors are distinguished with errors.Is.
func Example_errors() {
	c, done := openExample()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, err := c.Publish(ctx, "nowhere", client.Message{Body: []byte("x")})
	switch {
	case errors.Is(err, client.ErrQueueNotFound):
		fmt.Println("queue not found")
	case errors.Is(err, client.ErrLimit):
		fmt.Println("the queue is full")
	case errors.Is(err, client.ErrOutcomeUnknown):
		fmt.Println("outcome unknown")
	}
	// Output: queue not found
}
