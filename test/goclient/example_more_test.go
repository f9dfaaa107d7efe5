// SPDX-License-Identifier: Apache-2.0

package goclient_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// withQueue runs an example with a new node, which has a queue with the given messages.
func withQueue(queue string, bodies []string, example func(context.Context, *client.Client) error) {
	c, done := openExample()
	defer done()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	_, _, err := admin.New(c).CreateQueue(ctx, queue, admin.CreateQueueOptions{})
	for _, body := range bodies {
		if err == nil {
			_, err = c.Publish(ctx, queue, client.Message{Body: []byte(body)})
		}
	}
	if err == nil {
		err = example(ctx, c)
	}
	if err != nil {
		fmt.Println(err)
	}
}

// A batch is atomic: all its messages are stored, or none.
func Example_publishBatch() {
	withQueue("orders", nil, func(ctx context.Context, c *client.Client) error {
		receipt, err := c.PublishBatch(ctx, "orders", []client.Message{
			{Body: []byte("one")}, {Body: []byte("two"), Properties: map[string]string{"urgent": "yes"}},
		})
		if err != nil {
			return err
		}
		fmt.Println("first sequence:", receipt.Sequence)
		return nil
	})
	// Output: first sequence: 1
}

// All iterates over the messages of a subscription. A nacked message is redelivered.
func Example_consumerAll() {
	withQueue("orders", []string{"coffee", "tea"}, func(ctx context.Context, c *client.Client) error {
		consumer, err := c.Consume(ctx, "orders", client.ConsumerOptions{Prefetch: 1})
		if err != nil {
			return err
		}
		refused, done := false, 0
		for d, err := range consumer.All(ctx) {
			if err != nil {
				return err
			}
			if string(d.Body) == "coffee" && !refused {
				refused = true
				d.Nack()
				continue
			}
			fmt.Printf("%s, redelivered %d times\n", d.Body, d.DeliveryCount)
			d.Ack()
			if done++; done == 2 {
				break
			}
		}
		return consumer.Flush(ctx)
	})
	// Unordered output:
	// coffee, redelivered 1 times
	// tea, redelivered 0 times
}

// Browse reads messages without consuming them.
func Example_browse() {
	withQueue("orders", []string{"a", "b", "c", "d"}, func(ctx context.Context, c *client.Client) error {
		for m, err := range c.Browse(ctx, "orders", client.BrowseOptions{From: 2, Limit: 2}) {
			if err != nil {
				return err
			}
			fmt.Printf("%d: %s\n", m.Sequence, m.Body)
		}
		return nil
	})
	// Output:
	// 2: b
	// 3: c
}

// Queues lists queues with the backlog of each subscription.
func Example_queues() {
	withQueue("orders.eu", []string{"a", "b"}, func(ctx context.Context, c *client.Client) error {
		for q, err := range admin.New(c).Queues(ctx, "orders.") {
			if err != nil {
				return err
			}
			fmt.Printf("%s: %s has %d messages\n", q.Name, q.Subscriptions[0].Name, q.Subscriptions[0].Backlog)
		}
		return nil
	})
	// Output: orders.eu: default has 2 messages
}

// A queue with a limit rejects publishes that would exceed it.
func Example_alterQueue() {
	withQueue("orders", []string{"a"}, func(ctx context.Context, c *client.Client) error {
		if _, err := admin.New(c).AlterQueue(ctx, "orders", admin.QueueConfig{MaxMessages: 1}); err != nil {
			return err
		}
		_, err := c.Publish(ctx, "orders", client.Message{Body: []byte("b")})
		fmt.Println("full:", errors.Is(err, client.ErrLimit), "outcome unknown:", errors.Is(err, client.ErrOutcomeUnknown))
		return nil
	})
	// Output: full: true outcome unknown: false
}

// A rejected message is moved to the dead-letter queue with a description of its origin. When the cause is fixed, it is
// moved back to its queue.
func Example_reject() {
	withQueue("orders.dead", nil, func(ctx context.Context, c *client.Client) error {
		_, _, err := admin.New(c).CreateQueue(ctx, "orders", admin.CreateQueueOptions{
			Config: admin.QueueConfig{MaxDeliveries: 5, DeadLetter: "orders.dead"},
		})
		if err != nil {
			return err
		}
		if _, err := c.Publish(ctx, "orders", client.Message{Body: []byte("nonsense")}); err != nil {
			return err
		}
		consumer, err := c.Consume(ctx, "orders", client.ConsumerOptions{})
		if err != nil {
			return err
		}
		delivery, err := consumer.Receive(ctx)
		if err != nil {
			return err
		}
		delivery.Reject()
		if err := consumer.Flush(ctx); err != nil {
			return err
		}
		for m, err := range c.Browse(ctx, "orders.dead", client.BrowseOptions{}) {
			if err != nil {
				return err
			}
			fmt.Printf("%s: %s, from %s/%s\n", m.Body, m.DeadLetter.Reason, m.DeadLetter.Queue, m.DeadLetter.Subscription)
		}
		replayed, err := admin.New(c).ReplayDeadLetters(ctx, "orders.dead", admin.ReplayOptions{})
		if err != nil {
			return err
		}
		delivery, err = consumer.Receive(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("moved back: %d, delivered again with sequence %d\n", replayed.Moved, delivery.Sequence)
		return nil
	})
	// Output:
	// nonsense: rejected, from orders/default
	// moved back: 1, delivered again with sequence 2
}

// A call with an unknown outcome can be retried with the same Request: it is executed at most once.
func Example_request() {
	withQueue("orders", []string{"a", "b", "c"}, func(ctx context.Context, c *client.Client) error {
		var r admin.Request
		purged, err := admin.New(c).As(&r).PurgeQueue(ctx, "orders", "")
		for errors.Is(err, client.ErrOutcomeUnknown) && !errors.Is(err, client.ErrOutcomeLost) {
			purged, err = admin.New(c).As(&r).PurgeQueue(ctx, "orders", "")
		}
		fmt.Println("purged", purged)
		return err
	})
	// Output: purged 3
}

// A transaction requeues a message and publishes another message atomically.
func Example_release() {
	withQueue("orders", []string{"broken"}, func(ctx context.Context, c *client.Client) error {
		consumer, err := c.Consume(ctx, "orders", client.ConsumerOptions{})
		if err != nil {
			return err
		}
		d, err := consumer.Receive(ctx)
		if err != nil {
			return err
		}
		note := client.Message{Body: []byte("check the previous message")}
		_, err = c.Begin().Release(d).Publish("orders", note).Commit(ctx)
		if err != nil {
			return err
		}
		for d, err := range consumer.All(ctx) {
			if err != nil {
				return err
			}
			if d.Ack(); d.DeliveryCount > 0 {
				fmt.Printf("%s, redelivered %d times\n", d.Body, d.DeliveryCount)
				break
			}
		}
		return consumer.Flush(ctx)
	})
	// Output: broken, redelivered 1 times
}

// Node sends requests to one node by its address, regardless of its role; the client discovers the active node
// automatically.
func Example_nodeStatus() {
	withQueue("orders", []string{"a"}, func(ctx context.Context, c *client.Client) error {
		active, err := c.WaitActive(ctx)
		if err != nil {
			return err
		}
		n, err := admin.New(c).Node(active.Address)
		if err != nil {
			return err
		}
		status, err := n.Status(ctx)
		if err != nil {
			return err
		}
		fmt.Println(status.GetRole(), status.GetStore().GetMessages())
		return nil
	})
	// Output: ROLE_ACTIVE_ALONE 1
}

// Running settings are changed without a restart.
func Example_changeRunningSettings() {
	withQueue("orders", nil, func(ctx context.Context, c *client.Client) error {
		settings, err := admin.New(c).ChangeRunningSettings(ctx, &pb.ChangeSettingsRequest{
			Set: map[string]string{"limits.delivery-share": "20"},
		})
		if err != nil {
			return err
		}
		for _, s := range settings {
			if s.GetName() == "limits.delivery-share" {
				fmt.Println(s.GetValue(), s.GetChanged())
			}
		}
		return nil
	})
	// Output: 20% true
}

// Jobs of the pair schedule maintenance operations.
func Example_putJob() {
	withQueue("orders", nil, func(ctx context.Context, c *client.Client) error {
		if _, err := admin.New(c).PutJob(ctx, &pb.Job{Name: "nightly", Schedule: "0 3 * * *", Kind: "verify"}); err != nil {
			return err
		}
		jobs, err := admin.New(c).Jobs(ctx)
		if err != nil {
			return err
		}
		for _, j := range jobs {
			fmt.Println(j.GetName(), j.GetKind(), j.GetSchedule())
		}
		return admin.New(c).DeleteJob(ctx, "nightly")
	})
	// Output: nightly verify 0 3 * * *
}
