// SPDX-License-Identifier: Apache-2.0

// Package server has the rooms of a node, and the gRPC server itself.
//
// The services are server/queue for clients, server/admin for operators and server/maintenance/rpc for the upkeep of a
// pair. Each turns calls into what the packages below it do; server/wire has all conversions between protobuf and those
// packages, and the one table of errors. No service knows another one: server/node makes them from the parts of a node,
// and registers them with the server here.
//
// The parts are server/serving (the session that clients are served with), server/dispatch (deliveries to consumers),
// server/sweep (what is due by the clock), server/prepared (two-phase transactions), server/filter (which messages are
// wanted), server/maintenance (scans, rewrites, backups, plans, jobs), server/verify (scrub, repair, comparison of the
// nodes), server/settings (what holds now), server/peers (the other node),
// server/secretfile (secrets that two ends share), server/admission (which connections are let in), server/authn (who
// calls), server/access (who may do what), server/gate (which stands before every call) and server/audit (which records
// what was done and refused),
// server/conditions (what an operator may have to know), server/state (all that is known of a node at a moment)
// server/metrics, which exports it, and server/console, a web page for operators that reaches the services through
// server/inprocess.
//
// One call: the request is checked against every limit, names become numbers, and a transaction is encoded
// (server/queue); replication commits it; the store applies it; the answer is made from the result. Consume hands over
// to server/dispatch.
package server
