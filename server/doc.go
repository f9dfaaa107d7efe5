// SPDX-License-Identifier: Apache-2.0

// Package server implements the gRPC server of a node. Its directories:
//
//   - server/api: services for clients (queue) and operators (admin), conversions between protobuf and the packages
//     below (protoconv), the error table (apierror), and calls within the process (inprocgrpc)
//   - server/auth: the auth interceptor; authentication (authn), access rules (access), connection limits (admission),
//     the audit log (audit), shared secrets (secretfile)
//   - server/delivery: the client session of the active node (session), deliveries to consumers (dispatch), expiry
//     and other timed tasks (expiry), two-phase transactions (twophase), message filters (filter)
//   - server/ops: scans, rewrites, backups, plans and jobs (maintenance), occurrences of schedules (schedule),
//     repair and comparison of the nodes (scrub), replication to another site (site), membership in a fleet (member),
//     moves of queues between pairs (mover), the current settings (settings)
//   - server/observe: conditions (conditions), a snapshot of a node's state (nodestatus), rates and depths of the last
//     24 hours (history), metrics and traces
//   - server/console: the web console, which calls the services through server/api/inprocgrpc
//   - server/node: runs a node with all of these components
//
// server/config reads the configuration, server/peerclient calls the other node, server/forward sends calls to other
// pairs of a fleet, server/objectstore reads and writes S3 buckets, and server/httpport implements the HTTP ports.
package server
