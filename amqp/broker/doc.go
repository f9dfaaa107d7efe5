// SPDX-License-Identifier: Apache-2.0

// Package broker serves AMQP 1.0 clients in a node's process: it maps AMQP connections, links, outcomes and
// transactions to queues.
//
// It is a client of the node's own gRPC services, on behalf of the connected AMQP client. Permissions, quotas, limits,
// audit, metrics and traces are therefore those of a gRPC client with the same certificate or token. The package does
// not access the store and does not depend on failover.
//
// A connection has one reading and one writing goroutine. A link that publishes or consumes has a stream to the node,
// with one goroutine per direction. No goroutine is started per message. One mutex guards the state of a connection and
// all its links; it is not held while waiting.
package broker
