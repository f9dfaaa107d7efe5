// SPDX-License-Identifier: Apache-2.0

// Package client is the Go client of Lockstep.
//
// A [Client] connects to both nodes of a pair, discovers the active node and follows it through failovers and
// switchovers. Retries of publishes and transactions by the client are idempotent.
//
//	c, err := client.Open(ctx, "lockstep://node-a:7420,node-b:7420")
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	receipt, err := c.Publish(ctx, "orders", client.Message{Body: []byte("hello")})
//
// Consume messages with a handler. A nil result acknowledges the message, and an error requeues it. An error of
// [Reject] dead-letters or drops it.
//
//	consumer, err := c.Consume(ctx, "orders", client.ConsumerOptions{})
//	if err != nil {
//		return err
//	}
//	defer consumer.Close()
//	err = consumer.Run(ctx, func(ctx context.Context, d *client.Delivery) error {
//		return process(d.Body)
//	}, 4)
//
// To publish the result of each message exactly once, publish it and acknowledge the message in one transaction:
//
//	_, err = c.Begin().Take(d).Publish("invoices", invoice).Commit(ctx)
//
// The main operations are:
//
//   - [Client.Publish] stores a message and returns after the commit: every in-sync node has stored the message.
//   - [Client.NewProducer] creates a separate publish pipeline. [Producer.PublishAsync] returns a [Pending] without
//     waiting for the commit, and [Producer.Flush] waits for all pending publishes.
//   - [Client.Consume] attaches to a subscription with prefetch. [Consumer.Run] calls a handler for each message;
//     [Consumer.Receive] and [Consumer.All] return messages. Acknowledge messages in any order, asynchronously with
//     [Delivery.Ack] or synchronously with [Delivery.AckSync].
//   - [Client.Begin] starts a transaction: publishes and acknowledgements over any number of queues, committed
//     atomically.
//   - [Client.Browse] reads messages without consuming them.
//
// Producers and transactions send each message for a partitioned queue to the partition of its group ([Partition]),
// and a consumer attaches to all partitions. All groups in a batch must belong to one partition. [Client.Browse]
// requires the name of a partition ([PartitionName]).
//
// Package client/admin manages queues, subscriptions, access rules, settings, maintenance and nodes.
//
// # Errors
//
// Use errors.Is with the Err variables of this package. The comments of the methods list specific errors. Any call
// can also return [ErrDenied], [ErrUnauthenticated], [ErrInternal] and [ErrClosed].
//
// If the error of a publish or a transaction does not match [ErrOutcomeUnknown], the request was not committed and
// never will be. If it matches, the request may have been committed. A second call of [Txn.Commit] or
// [Delivery.AckSync] is an idempotent retry. A second call of Publish may store a duplicate.
//
// Unless documented otherwise, the context of a call limits the call as a whole, including all retries.
//
// # How the client follows the active node
//
// The client maintains one connection and one AdminService.WatchStatus stream per address. A node reports on this
// stream when it becomes active, so the client switches without waiting for a timeout. The client ignores a node that
// is active in a term below the highest term that it has seen in the pair.
//
// With a pair at each of two sites, the client follows the pair at the primary site, unless [Options.AnySite] is set.
// It ignores a primary in an epoch below the highest epoch that it has seen.
//
// In a fleet, the client sends requests to the pairs that own the queues, unless [Options.FixedAddresses] is set.
//
// While calls to a node are pending, the client probes the node about once per [Options.ProbeInterval]. If the node
// does not respond, the client replaces the connection.
package client
