// SPDX-License-Identifier: Apache-2.0

// Package raft is the coordinator for a pair that has no etcd: three voters of hashicorp/raft, one in each data
// node and one in a witness, a process that does nothing else. They agree on the pair's record and on nothing more; who
// leads them has nothing to do with which node is active.
//
//	Coordinator ─ atLeader ─▶ service ┬ Voter itself, if it leads
//	 (route.go)                       └ remote ─ HTTP ─▶ api of the leader ─▶ Voter
//	Voter: Load  = ready by a barrier, confirmed by a majority, then its own state        (service.go)
//	       Swap  = one log entry; fsm.Apply compares the revision and the operation's id  (fsm.go)
//	       Watch, Announce = the leader's memory; hints only                              (lead.go)
//	       bootstrap, wiped disks, removed voters                                         (form.go)
//	       members                                                                        (change.go)
//	port: raft and API on one listener, each connection with a hello that names the voter (stream.go)
//	transport: raft's, with ids, without pauses, silent when the disk is stuck            (transport.go)
//
// Open, Start and RunWitness run a voter; Admin asks a cluster from outside; Recover is for a lost quorum. Why it is
// made like this: docs/decisions/0007-raft-coordinator.md.
package raft
