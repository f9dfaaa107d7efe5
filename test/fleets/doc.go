// SPDX-License-Identifier: Apache-2.0

// Package fleets simulates a fleet of three pairs under faults, while queues move between the pairs.
//
// The six nodes are calls of node.Run in one testing/synctest bubble (test/simpair). The network, the disk of each
// node, the clock, the coordinator of each pair, and the etcd of the directory (test/simetcd) are simulated.
//
// TestFleet runs the workload of test/cluster with clients of one pair each. The seed determines moves of queues and
// of placement groups, cancellations of moves, drains of pairs, and faults of nodes, disks, links and the directory.
// Some faults begin immediately before a step of a move; for example, the active of the source or of the target is
// killed, loses power, or transfers its role. After an older copy of the directory was restored, an operator rebuilds
// the directory.
//
// At random moments, and before each step of a move, the active nodes of all pairs are asked at the same instant which
// queues they serve: at most one pair may serve a queue. Within a minute after the last fault, all pairs must be in
// sync, and all moves must have ended. TestFleet then requires that no message is lost, duplicated or out of order,
// and that confirmed acknowledgements are permanent. It also requires that each queue belongs to one pair, that the
// directory agrees with the logs, and that the nodes of each pair have equal contents.
//
// # Seeds
//
//	go test ./test/fleets                       3 seeds
//	go test -tags deep ./test/fleets            100 seeds
//	go test ./test/fleets -seeds=1000 -v        1000 seeds, prints the totals
//	go test ./test/fleets -seed=17 -v           one seed; prints its events
//
// LOCKSTEP_TEST_LOGS=1 prints the logs of the nodes, and LOCKSTEP_KEEP=dir keeps the history of a failed seed in that
// directory. The seed does not determine the order in which the Go scheduler runs goroutines that are ready at the
// same instant, nor UUIDs. Reproducing a failure may therefore require several repetitions (-count=20).
package fleets
