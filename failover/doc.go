// SPDX-License-Identifier: Apache-2.0

// Package failover decides which node of a pair holds the active role.
//
// # Overview
//
// Write safety never depends on a clock. A record in a linearizable store, the coordinator, defines the active and
// the stores that have every committed transaction. Two mechanisms decide whether a write may be acknowledged:
// compare-and-swap on that record, and the standby's rejection of messages below its fence. Heartbeats and leases
// only affect how soon a takeover starts, and how long stale deliveries remain possible.
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
//	status.go       the status and the settings of a node; role.go and code.go: its roles and the causes of changes
//	features.go     the features that a record requires of the releases of both nodes
//	spec            TLA+ models of the same rules
//
// # Subpackages
//
//	coordinator/etcd       the record in etcd; etcd/embedded starts an in-process etcd for development and tests
//	coordinator/etcdconn   client and watch of etcd, also used by package fleet
//	coordinator/raft       the record in three hashicorp/raft voters: the two nodes and a witness
//	coordinator/memory     the record in memory, for a node without a partner and for tests
//	test/coordtest         the conformance suite for all three
//	coordinator/internal   shared code: latest, a value with watchers; dupdetect, the duplicate-process detection
//
// # Invariants
//
//	INV-1   Appends and acks contain config and term. A standby rejects messages below its fence, and persists a
//	        higher fence before it accepts messages with that fence.
//	INV-2   A transaction is acknowledged, applied or delivered only when it is durable on every member of in_sync.
//	INV-3   The standby is removed by a swap before the active acknowledges alone, and added by a swap after its acks
//	        are required.
//	INV-4   Only a member of in_sync with matching store and incarnation may promote itself. Before its swap, it stops
//	        accepting the old active's records and persists the fence.
//	INV-5   Pages are written only from committed records, so a divergent tail exists only in the log, and can be
//	        truncated.
//	INV-6   A node that may have lost acknowledged bytes removes itself from in_sync first. If it is the only member,
//	        it waits for an operator. A node without a partner (Settings.AcceptLoss) continues.
//	INV-7   A failed fsync is fatal: the node stops, and recovers by a restart.
//	INV-8   After a swap with an unknown outcome, the node serves nothing until a linearizable read.
//	INV-9   A missing record with a non-empty store, or a record older than the node's fence, is rejected.
//	INV-10  A producer's sequence is committed with its messages.
//	INV-11  Only the process generation of a store that in_sync lists may act, or have its acks counted. Each start
//	        begins a generation, which is durable in the store before the record lists it. A running process that is
//	        replaced by another generation stops its role permanently.
//	INV-12  An in-sync store that ends before the high-water mark was restored from an older copy, or lost records in
//	        an unclean stop; INV-6 applies.
//	INV-13  A node never truncates or discards records that it knows to be committed, unless a forced failover or an
//	        adoption without this node has discarded them. A previously active node resumes the role only if the other
//	        in-sync member has reported that its log is not longer, or does not respond.
package failover
