// SPDX-License-Identifier: Apache-2.0

// Package raft implements a coordinator for a pair without etcd. It consists of three hashicorp/raft voters, one in
// each data node and one in a witness, a process without other tasks. They agree only on the cluster record; their
// leader is independent of the active node.
//
//	Coordinator ─ atLeader ─▶ service ┬ Voter itself, if it leads
//	 (route.go)                       └ remote ─ HTTP ─▶ api of the leader ─▶ Voter
//	Voter: Load  = ready by a barrier, confirmed by a majority, then its own state        (service.go)
//	       Swap  = one log entry; fsm.Apply compares the revision and the operation ID    (fsm.go)
//	       Watch, Announce = the leader's memory; hints only                              (lead.go)
//	       bootstrap, wiped disks, removed voters                                         (form.go)
//	       members                                                                        (change.go)
//	port: raft and API on one listener, each connection with a hello that names the voter (stream.go)
//	transport: raft's, with IDs, without pauses, silent when the disk is stalled          (transport.go)
//
// Open, Start and RunWitness run a voter; Admin accesses a cluster from outside; Recover handles a lost quorum. The
// rationale is in docs/decisions/0007-raft-coordinator.md.
package raft
