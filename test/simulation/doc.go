// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package simulation runs whole pairs in simulated time, injects faults derived from a seed, and verifies all
// responses that clients received.
//
// # Real components
//
// Nearly everything is real: two node.Run instances, as called by `lockstep serve`, with store, replication, failover
// and all gRPC services, and the client package. A simulation is one testing/synctest bubble, so a timeout of a
// second takes no real time. The simulated components are
//
//	test/simnet          TCP: connections with latency, one-way cuts, silence, resets and refusals
//	disk_test.go         the disk: memfs.FS, which loses unsynced data on a power failure; slow, hanging, failing
//	coordinator_test.go  the link to the coordinator, failover/coordinator/memory: silence, outages, swaps with an
//	                     unknown outcome
//	host_test.go         the machine: starts, kills, power failures, boots, and a service manager
//	plan_test.go         the faults, generated from the seed
//	disks_test.go        older images, copies, swaps and losses of disks, generated from the seed (TestDisks)
//
// Workload, history and checker are those of test/cluster. It has publishers and consumers; applications with short
// deadlines, which retry calls with an unknown outcome and rely on the documented meaning of every error; and strays
// that publish to each node regardless of its role. A pair must be in sync and serve within 20 simulated seconds of
// the last fault. Then every guarantee is checked, the contents of both stores are compared, and their files are
// verified.
//
// # Seeds
//
//	go test ./test/simulation                           20 seeds
//	go test -tags deep ./test/simulation                300 seeds
//	go test ./test/simulation -v -seeds=10000           that many; prints the totals
//	go test ./test/simulation -run TestSimulation -seed=17 -v    one, with the logs of both nodes
//
// TestDisks does the same for moves of disks, in 60 seeds (4 in the default tier); there a disk is not part of its
// host. Where the documented outcome is that the nodes wait for an operator, the simulation acts as the operator, and
// nothing may be lost.
//
// The seed determines settings, workload, the plan of faults, and the data that a disk loses. It does not determine
// the order in which the Go scheduler runs goroutines that are ready at the same instant, nor UUIDs. A failure that
// depends on them takes a few replays (-count=20).
//
// Faults are counted when they take effect, not when they start. A default run fails if a kind of fault had no
// effect, or if no application call had one of its outcomes. With LOCKSTEP_KEEP=dir the history of a failed seed is
// kept there.
//
// # Limits
//
// All goroutines of a bubble share one clock, so the clocks of two nodes cannot drift apart. A process cannot be
// suspended between two instructions while the other one runs; "freeze" stops all its I/O instead. test/chaos uses
// SIGSTOP.
//
// In TestSimulation the coordinator drops the lease of a killed process immediately. In TestDisks the lease lasts
// until it expires, as with etcd.
//
// synctest does not consider a goroutine that waits for a sync.Mutex idle: a goroutine that sleeps with a contended
// lock held would stop the clock. So simulated delays affect only reads, and the writes and syncs of the log, whose
// locks are designed for it (store/wal).
package simulation
