// SPDX-License-Identifier: Apache-2.0

// Package client is the Go client of Lockstep.
//
// A [Client] connects to both nodes of a pair, discovers the active node and follows it through failovers and
// switchovers. Retries by the client are idempotent: publishes, transactions, and requests that change queues,
// subscriptions, access rules, policies or schedules carry a producer ID and a sequence, and a retry returns the
// original result.
//
//	c, err := client.Open(ctx, "lockstep://node-a:7420,node-b:7420")
//	if err != nil {
//		return err
//	}
//	defer c.Close()
//	receipt, err := c.Publish(ctx, "orders", client.Message{Body: []byte("hello")})
//
// Consume messages with a handler. A nil result acknowledges the message, an error requeues it, and [Reject]
// dead-letters it.
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
// To process a message exactly once, publish the result and acknowledge the message in one transaction:
//
//	_, err = c.Begin().Take(d).Publish("invoices", invoice).Commit(ctx)
//
// The main operations are:
//
//   - [Client.Publish] stores a message and returns after the commit: every in-sync node has stored the message.
//   - [Client.NewProducer] creates a separate publish pipeline. [Producer.PublishAsync] returns a
//     [Pending] without waiting for the commit, and [Producer.Flush] waits for all pending publishes.
//   - [Client.Consume] attaches to a subscription with prefetch. [Consumer.Run] calls a handler for each message;
//     [Consumer.Receive] and [Consumer.All] return messages. Acknowledge messages in any order, asynchronously with
//     [Delivery.Ack] or synchronously with [Delivery.AckSync]. After a failover the consumer reattaches, and does not
//     redeliver messages that the application still holds or has acknowledged.
//   - [Client.Begin] starts a transaction: publishes and acknowledgements over any number of queues, committed
//     atomically.
//   - [Client.Browse] reads messages without consuming them.
//
// Producers and transactions send each message for a partitioned queue to the partition of its group ([Partition]), and
// a consumer attaches to all partitions. A batch must have messages of one partition. [Client.Browse] requires the name
// of a partition ([PartitionName]).
//
// Package client/admin manages queues, subscriptions, access rules, settings, maintenance and nodes.
//
// # Errors
//
// Use errors.Is with the Err variables of this package. The text of an error from a node includes the address of the
// node. The comments of the methods list the errors that are specific to a method. Any call can also return
// [ErrDenied], [ErrUnauthenticated], [ErrInternal] and [ErrClosed].
//
// An error that does not match [ErrOutcomeUnknown] means that the request was not committed and never will be. An
// error that matches ErrOutcomeUnknown means that the request may have been committed. After it, call [Txn.Commit] or
// [Delivery.AckSync] again: the retry is idempotent. A second call of Publish may store a duplicate.
//
// The context of a call limits the call as a whole, including the search for the active node and all retries.
//
// # How the client follows the active node
//
// The client maintains one connection and one AdminService.WatchStatus stream per address. A node reports on this
// stream when it becomes active, so the client switches without waiting for a timeout. The client ignores a node
// that claims to be active in a term below the highest term that the client has seen.
//
// With a pair at each of two sites, the client follows the pair at the primary site. It learns the addresses of the
// other site from the nodes. It ignores replicas, and a primary in an epoch below the highest epoch that the client
// has seen. Terms are compared only within a pair.
//
// If the pair belongs to a fleet, the client follows NOT_OWNER to the pairs that own the queues, and follows the active
// node of each of these pairs in the same way.
//
// While calls to a node are pending, the client probes the node once per [Options.ProbeInterval]. A connection that
// does not respond is closed and replaced.
package client
