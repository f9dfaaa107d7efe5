// SPDX-License-Identifier: Apache-2.0

// Package server implements the gRPC server of a node; its subpackages implement the services and their parts.
//
// Services: server/queue for clients, server/admin for operators and server/maintenance/rpc for the maintenance of a
// pair. Each converts calls to operations of the packages below it. server/wire has all conversions between protobuf
// and those packages, and the only error table. Services are independent of each other: server/node creates them from
// the parts of a node, and registers them with the server here.
//
// Parts:
//
//   - server/serving: the session in which clients are served
//   - server/dispatch: deliveries to consumers
//   - server/sweep: expiry and other timed actions
//   - server/prepared: two-phase transactions
//   - server/filter: message filters
//   - server/maintenance: scans, rewrites, backups, plans, jobs
//   - server/verify: scrub, repair, comparison of the nodes
//   - server/settings: the current settings
//   - server/peers: the client for the other node
//   - server/secretfile: shared secrets
//   - server/admission: connection limits
//   - server/authn: authentication
//   - server/access: rights and access rules
//   - server/gate: the auth interceptor
//   - server/audit: the audit log
//   - server/conditions: conditions that require attention
//   - server/state: a snapshot of a node's state
//   - server/metrics: export of that state
//   - server/console: the web console, which calls the services through server/inprocess
//
// A publish proceeds as follows: the request is checked against all limits, names are resolved to numbers, and a
// transaction is encoded (server/queue); replication commits it; the store applies it; the response is created from the
// result. Consume is handled by server/dispatch.
package server
