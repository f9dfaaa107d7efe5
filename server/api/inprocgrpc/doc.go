// SPDX-License-Identifier: Apache-2.0

// Package inprocgrpc implements in-process calls to the node's own gRPC services, on behalf of clients connected by
// other means, such as browsers or AMQP clients.
//
// A Link is both ends of such calls: services are registered with it, and generated clients use it as a connection.
// Each handler runs in its own goroutine, and messages pass over a short channel in each direction. Metadata,
// deadlines, cancellation, status details, size limits and flow control work as over the network.
//
// Calls pass the same auth interceptor as calls from the network: it verifies the token or the certificate, applies
// address limits to the client's address, and writes the audit log.
//
// Messages with the contents of queues are passed by reference (see pack): neither end may modify them, but the sender
// may continue to read and resend them. All others are encoded and decoded, so the ends share no memory.
package inprocgrpc
