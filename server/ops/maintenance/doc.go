// SPDX-License-Identifier: Apache-2.0

// Package maintenance implements scans, rewrites, shrinks and backups of this node's page file. For the pair, it
// implements settings, the rolling plan and scheduled jobs.
//
// # Stored state
//
// The state of the pair is in the store's metadata entries, which are replicated like messages. Only the active changes
// them, and only in the term in which it read them. Therefore read, change and commit need only a lock in this process.
//
//	maintenance/settings     changed settings, and the request of a rewrite at the next start
//	maintenance/plan         the last rolling plan
//	maintenance/job/<name>   a scheduled job
//	maintenance/runs/<name>  its last runs
//	settings/running         settings changed at run time
//
// The steps of a plan that a node has done are in maintenance.json in its data directory: a repeated request does not
// repeat the step.
//
// # Responsibilities
//
// A Manager runs on every node. Its operations on this node's page file (operations.go) run one at a time. Its
// controller (controller.go) and its scheduler (schedule.go) run on the active only: they read the state, execute the
// next step, and record that it is done. After a crash, the next active continues in the same way.
//
// # Preemption of rewrites
//
// While a standby rewrites its page file, it continues to receive, sync and acknowledge its log; only applying waits.
// Therefore the rewrite must end before the node can take over: server/node calls CancelRewrite before it starts or
// ends a role, which cancels the rewrite and waits for its end. Then the backlog is applied to the old page file, as
// after a restart.
//
// The package does not depend on gRPC and protobuf: the other node is behind the interface Peers, and this node's role
// behind Node.
package maintenance
