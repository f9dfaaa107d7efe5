// SPDX-License-Identifier: Apache-2.0

// Package failover decides which node of a pair holds the active role.
//
// # Overview
//
// Write safety never depends on a clock. One record in an external store, the coordinator, defines the active and the
// stores that hold every committed transaction. Two mechanisms decide whether a write may be acknowledged: a
// compare-and-swap on that record, and the standby's rejection of anything below its fence. Heartbeats and leases
// only affect how soon a takeover starts, and for how long a stale delivery is possible.
//
// # Files
//
//	record.go       the cluster record, as stored in the coordinator
//	mark.go         the high-water mark of committed records
//	coordinator.go  the interface of the coordinator, implemented by the packages below coordinator
//	dataplane.go    the interface to replication and the store, and their events
//	events.go       the events and effects of Step
//	machine*.go     Step(State, Event) → (State, []Effect): every decision, without I/O, clocks or randomness
//	runner*.go      the loop that feeds Step and executes its effects
//	spec            the same in TLA+, for TLC
//
// # Subpackages
//
//	coordinator/etcd       a record in etcd; etcd/embedded starts an in-process etcd for development and tests
//	coordinator/raft       a record in three hashicorp/raft voters: the two nodes and a witness
//	coordinator/memory     an in-process record, for a node without a partner and for tests
//	test/coordtest         the conformance suite for all three
//	coordinator/internal   shared code: latest, a value with watchers; dupdetect, the duplicate-process detection
//
// Invariants
//
//	INV-1   Appends and acks carry config and term; a standby persists its fence before obeying it and rejects
//	        anything below it.
//	INV-2   A transaction is acknowledged, applied or delivered only when it is durable on every member of in_sync.
//	INV-3   Removing the standby: swap first, acknowledge alone after. Adding it: require its acks first, swap after.
//	INV-4   Only a member of in_sync with matching store and incarnation may promote itself; it stops accepting the
//	        old active's records and persists that fence before its swap.
//	INV-5   Pages are written only from committed records, so a divergent tail exists only in the log, and can be cut.
//	INV-6   A node that may have lost acknowledged bytes removes itself from in_sync first; if it is the only member,
//	        it reports that and waits for the operator.
//	INV-7   A failed fsync is fatal: the node stops and recovers by restart.
//	INV-8   After a swap with an unknown outcome the node serves nothing until a linearizable re-read.
//	INV-9   A missing record with a non-empty store, or a record older than the node's own config, is rejected.
//	INV-10  A producer's sequence is committed with its messages.
//	INV-11  Only the process generation (run) of a store that in_sync names may act or be counted; each start renews
//	        it, durably in the store first. A running node that is replaced by another generation stops permanently.
//	INV-12  An in-sync store that ends before the pair's high-water mark was restored from an older copy: as INV-6.
//	INV-13  A node never truncates or discards records it knows to be committed. A previously active node takes the
//	        role again only after the other in-sync member has reported that its log is not longer, or did not respond.
package failover
