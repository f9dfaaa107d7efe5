// SPDX-License-Identifier: Apache-2.0

// Package inprocgrpc implements in-process calls to the node's gRPC services, on behalf of clients connected by
// other means, such as browsers or AMQP clients.
//
// Services are registered with a Link. Generated clients use the Link as a connection. Each handler runs in a
// separate goroutine, and a channel in each direction transfers the messages. Metadata, deadlines, cancellation,
// status details, size limits and flow control work as over the network.
//
// The usual messages of publish and consume streams are passed by reference (see pack). Neither end may modify them,
// but the sender may continue to read and resend them. All other messages are encoded and decoded, so that the ends
// share no memory.
package inprocgrpc
