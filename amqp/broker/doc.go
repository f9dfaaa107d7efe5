// SPDX-License-Identifier: Apache-2.0

// Package broker serves AMQP 1.0 clients in a node's process: it maps AMQP connections, links, outcomes and
// transactions to queues.
//
// It calls the node's gRPC services on behalf of the AMQP client. Permissions, quotas, limits, audit, metrics and
// traces therefore apply in the same way as to a gRPC client with the same certificate or token. The package does
// not access the store and does not depend on failover.
//
// A connection has a reading and a writing goroutine. A link that consumes has one stream to the pair of its queue. A
// link that publishes has one stream to each pair that it publishes to. Each stream has one goroutine per direction.
// One mutex, conn.mu ("mu" in comments), guards the state of a connection and its links. The methods of links are
// called with mu held; mu is released while a goroutine waits.
package broker
