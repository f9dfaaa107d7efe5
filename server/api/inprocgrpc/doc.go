// SPDX-License-Identifier: Apache-2.0

// Package inprocgrpc implements in-process calls to the node's own gRPC services. The callers act for clients connected
// by other means, such as browsers or AMQP clients.
//
// A Link is both ends of such calls: services are registered with it, and generated clients use it as a connection. It
// has no transport: each handler runs in its own goroutine, and messages pass over a short channel in each direction.
// Callers observe the same behavior as over the network: metadata, deadlines, cancellation, the status with its
// details, the limits on request and response sizes, and flow control.
//
// Calls over a Link pass the same auth interceptor as calls from the network. It verifies the credentials (a token in
// the call's metadata, a certificate), address limits apply to the client's address, and calls are logged to the audit
// log. A call over a Link never has more rights than the same call over the network.
//
// Messages with the contents of queues are passed by reference (see pack): the sender may continue to read and resend
// them, but neither end may modify them. All others are encoded and decoded, so that the ends share no memory.
package inprocgrpc
