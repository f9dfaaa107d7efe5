// SPDX-License-Identifier: Apache-2.0

// Package broker serves AMQP 1.0 clients in a node's process: it maps connections, links, outcomes and transactions of
// AMQP to queues.
//
// It is a client of the node's own gRPC services, on behalf of whoever is connected: who may do what, quotas, limits,
// the audit, metrics and traces are those of a gRPC client that shows the same certificate or token. It knows nothing
// of the store, and nothing of how roles are decided.
//
// One goroutine reads a connection and one writes it; a link that publishes or consumes has a stream to the node, with
// a goroutine for each direction. No goroutine belongs to a message. The state of a connection and all its links is
// guarded by one mutex, which is not held while anything is waited for.
package broker
