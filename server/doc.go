// SPDX-License-Identifier: Apache-2.0

// Package server implements the gRPC server of a node; its subpackages implement the services and their parts.
//
// Services: server/api/queue for clients, server/api/admin for operators and server/ops/maintenance/rpc for the maintenance of a
// pair. Each converts calls to operations of the packages below it. server/api/wire has all conversions between protobuf
// and those packages, and the only error table. Services are independent of each other: server/node creates them from
// the parts of a node, and registers them with the server here.
//
// Parts:
//
//   - server/delivery/session: the session in which clients are served
//   - server/delivery/dispatch: deliveries to consumers
//   - server/delivery/expiry: expiry and other timed actions
//   - server/delivery/twophase: two-phase transactions
//   - server/delivery/filter: message filters
//   - server/ops/maintenance: scans, rewrites, backups, plans, jobs
//   - server/ops/scrub: scrub, repair, comparison of the nodes
//   - server/ops/settings: the current settings
//   - server/peerclient: the client for the other node
//   - server/auth/secretfile: shared secrets
//   - server/auth/admission: connection limits
//   - server/auth/authn: authentication
//   - server/auth/access: rights and access rules
//   - server/auth: the auth interceptor
//   - server/auth/audit: the audit log
//   - server/observe/conditions: conditions that require attention
//   - server/observe/nodestatus: a snapshot of a node's state
//   - server/observe/metrics: export of that state
//   - server/console: the web console, which calls the services through server/api/inprocgrpc
//
// A publish proceeds as follows: the request is checked against all limits, names are resolved to numbers, and a
// transaction is encoded (server/api/queue); replication commits it; the store applies it; the response is created from the
// result. Consume is handled by server/delivery/dispatch.
package server
