// SPDX-License-Identifier: Apache-2.0

// Package raft implements a coordinator for a pair without etcd. It consists of three hashicorp/raft voters: one in
// each data node, and one in a witness, a process without other tasks. They replicate only the cluster record and the
// mark. Their leader is independent of the active node.
//
//	Coordinator ─ atLeader ─▶ service ┬ Voter itself, if it leads
//	 (route.go)                       └ remote ─ HTTP ─▶ api of the leader ─▶ Voter
//	Voter: Load  = after a barrier and a confirmation by a majority: the local state      (service.go)
//	       Swap  = one log entry; fsm.Apply compares the revision and the operation ID    (fsm.go)
//	       Watch, Announce = in memory of the leader; hints only                          (lead.go)
//	       bootstrap, wiped disks, removed voters                                         (form.go)
//	       membership changes                                                             (change.go)
//	port: raft and API on one listener; the hello of a connection contains the voter IDs  (stream.go)
//	transport: raft's, with voter IDs, immediate retries and stall detection              (transport.go)
//
// Open, Start and RunWitness run a voter, Admin accesses a cluster from another process, and Recover restores a lost
// quorum. The rationale is in docs/decisions/0007-raft-coordinator.md.
package raft
