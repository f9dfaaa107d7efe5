// SPDX-License-Identifier: Apache-2.0

// Package failover decides which node of a pair may act.
//
// # The idea
//
// Write safety never depends on a clock. One record in an external authority, the coordinator, says who is active and
// which stores hold every committed transaction. Whether a write may be acknowledged is decided by two things alone: a
// compare-and-swap on that record, and the standby's refusal of anything older than its fence. Heartbeats and leases
// decide only how soon a takeover starts, and for how long a stale delivery is possible.
//
// # The parts
//
//	record.go       the pair's record, as it is stored in the coordinator
//	fence.go        what a node will not go back behind
//	mark.go         how far the pair is known to have committed
//	coordinator.go  the interface of the authority, which the packages below coordinator implement
//	dataplane.go    what the machine asks of replication and of the store, and what they report back
//	events.go       what Step is told, and what it wants done
//	machine*.go     Step(State, Event) → (State, []Effect): every decision, without I/O, clocks or randomness
//	runner*.go      the loop that feeds Step and carries out its effects
//	spec            the same in TLA+, for TLC
//
// # The packages below it
//
//	coordinator/etcd       a record in an etcd; etcd/embedded starts one in this process, for development and for tests
//	coordinator/raft       a record in three voters of hashicorp/raft: the two nodes and a witness
//	coordinator/memory     a record in this process, for a node without a partner and for tests
//	coordinator/coordtest  one conformance suite, which each of the three passes
//	coordinator/internal   what they share: latest, a value with watchers; twins, other processes of one identity
//
// # Invariants
//
// The numbers are used in comments all over the code base.
//
//	INV-1   Appends and acks carry config and term; a standby persists its fence before obeying it and rejects what is
//	        below.
//	INV-2   A transaction is acknowledged, applied or delivered only when it is durable on every member of in_sync.
//	INV-3   Removing the standby: swap first, acknowledge alone after. Adding it: require its acks first, swap after.
//	INV-4   Only a member of in_sync with matching store and incarnation may promote itself; it stops accepting the old
//	        active's records and persists that fence before its swap.
//	INV-5   Pages are written only from committed records, so a divergent tail is always just log, and can be cut.
//	INV-6   A node that may have lost acknowledged bytes takes itself out of in_sync before anything else; if it is the
//	        only member, it says so and waits for the operator.
//	INV-7   A failed fsync is fatal: the node stops and recovers by restart.
//	INV-8   After a swap with an unknown outcome the node serves nothing until a linearizable re-read.
//	INV-9   A missing record beside a non-empty store, or a record older than the node's own config, is refused.
//	INV-10  A producer's sequence is committed with its messages.
//	INV-11  Only the run of a store that in_sync names may act or be counted; a start renews it, durably in the store
//	        first. A running node that finds another run in its place stops for good.
//	INV-12  A store that is named in sync and ends before the pair's high-water mark was put back: as INV-6.
//	INV-13  What a node knows to be committed it never cuts or discards; a node that was active takes the role up again
//	        only after the other member in sync has said that its log is not longer, or has not come.
package failover
