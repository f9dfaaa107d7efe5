// SPDX-License-Identifier: Apache-2.0

// Package maintenance keeps the page files of a pair in shape: scans, rewrites, shrinks and backups of this node, and,
// for the pair, settings, the rolling plan, scheduled jobs and autotune.
//
// # What is kept where
//
// What belongs to the pair is in the store's own small entries, which are replicated like messages: the same on both
// nodes, and there after any crash of either node and of the coordinator. Only the active changes them, and only in the
// term in which it read them, so that reading, changing and committing need no more than a lock of this process.
//
//	maintenance/settings     what was set, and the request of a rewrite at the next start
//	maintenance/plan         the last rolling plan
//	maintenance/job/<name>   a scheduled job
//	maintenance/runs/<name>  its last runs
//	maintenance/autotune     when autotune looked last
//
// What a node has done of a plan is in maintenance.json in its data directory: a step that is asked for again is not
// done again.
//
// # Who does what
//
// A Manager runs on every node. Its operations on this node's page file (operations.go) run one at a time, for any
// caller. Its controller (controller.go) and its scheduler (schedule.go) work on the active only. They look at what is
// there, do the one next thing, and write down what is now done; the node that is active after a crash does the same,
// and so goes on.
//
// # A rewrite gives way
//
// While a standby rewrites its page file, its log goes on receiving, syncing and acknowledging; only applying waits. So
// the rewrite must end before the node can take over: the code that ends or begins a role (server/node) calls GiveWay
// first, which cancels it and waits until nothing of it is left. Then the backlog is applied to the old page file, as
// after any restart.
//
// The package knows neither gRPC nor protobuf. The other node is behind the interface Peers, this one's role behind
// Node.
package maintenance
