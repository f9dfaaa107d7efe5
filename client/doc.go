// SPDX-License-Identifier: Apache-2.0

// Package client is the Go client of Lockstep.
//
// A Client is given the addresses of both nodes of a pair. It finds the active one, follows it through failovers and
// switchovers, and repeats what was not answered with the same producer sequence, so that a repeated publish is
// answered with the original result: never lost, never doubled.
//
//   - Publish stores a message and returns when it is committed: durable on every in-sync node.
//   - NewProducer gives a pipeline of its own: PublishAsync returns at once and calls back when committed.
//   - Consume reads a subscription with prefetch; messages are acknowledged in any order, in the background (Ack) or
//     confirmed (AckSync). After a failover the consumer attaches again and does not hand out again what the
//     application still holds or has already acknowledged.
//   - Begin collects publishes and acknowledgements over any number of queues, all committed or none.
//   - Browse reads without consuming. Queues and subscriptions are managed by methods of Client, one given node by
//     Node.
//   - Page files are scanned, rewritten, shrunk and backed up by methods of Node; settings, the rolling plan and jobs
//     belong to the pair and are methods of Client.
//
// An error without ErrOutcomeUnknown means that nothing was committed, and that nothing of that attempt ever will be.
// With it, the same Txn, AckSync or Request can be asked again, and asks for the same thing; a Publish that is made
// again is another message.
//
// Every call takes a context, which bounds how long the client goes on looking for an active node. Errors say which
// node answered and are told apart with errors.Is and the Err values of this package.
//
// # How the active is followed
//
// For each address the client keeps one connection and one AdminService.WatchStatus stream (locator.go). A node that
// becomes active says so by itself: the client moves at the moment of the takeover, not at the end of a timeout. A node
// that claims to be active in a term below the highest one seen is not believed. While calls wait, the node they wait
// for is asked once per ProbeInterval whether it is still there; a connection that does not answer is thrown away.
package client
