// SPDX-License-Identifier: Apache-2.0

// Package maintenance implements scans, rewrites, shrinks and backups of this node's page file, and verifies backups.
// For the pair, it implements settings, the rolling plan and scheduled jobs.
//
// # Stored state
//
// The state of the pair is in internal entries of the store (query.Meta), which are replicated like messages. Only
// the active changes these entries, and only in the term in which it has read them.
//
//	maintenance/settings     changed settings, and the request of a rewrite at the next start
//	maintenance/plan         the last rolling plan
//	maintenance/job/<name>   a scheduled job
//	maintenance/runs/<name>  its last runs
//	settings/running         settings changed at run time
//
// Each node records the completed steps of plans in maintenance.json in its data directory.
//
// # Responsibilities
//
// A Manager runs on every node. Its operations on this node's page file (operations.go) run one at a time. Its
// controller (controller.go) and scheduler (schedule.go) run on the active only: they read the state, execute the
// next step, and record that it is done.
//
// # Preemption of rewrites
//
// While a standby rewrites its page file, it continues to receive, sync and acknowledge its log, but does not apply
// it. Before the node becomes active or stops following, the rewrite must be ended with CancelRewrite.
//
// The package does not depend on gRPC or protobuf. The interface Peers represents the other node, and Node the role of
// this node.
package maintenance
