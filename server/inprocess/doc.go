// SPDX-License-Identifier: Apache-2.0

// Package inprocess lets callers in a node's process call the node's own gRPC services, on behalf of somebody who has
// reached the process another way, such as a browser or an AMQP client.
//
// A Link is both ends of such calls: the services are registered with it, and the generated clients take it for a
// connection. There is no transport between them: the handler of a call runs in a goroutine of its own, and messages
// pass over a short channel in each direction. What a caller notices is what it would notice over the network:
// metadata, deadlines, cancellation, the status with its details, the largest request and response, and that a sender
// waits for a receiver that is slow.
//
// Calls over a Link pass the same gate as those from the network: what the caller has shown (a token in the call's
// metadata, a certificate) is checked there, limits of addresses count the address of the somebody, and the audit tells
// it. A Link never gives a call more than the same caller would have over the network.
//
// Messages that carry the messages of queues are handed over and not copied (see pack): who has sent one may go on to
// read it, and send it again, but neither end may change it. All others are encoded and decoded, so that nothing in
// them is shared.
package inprocess
