// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package simulation runs pairs of complete nodes in simulated time, injects faults derived from a seed, and verifies
// all responses that clients received.
//
// # Real components
//
// The nodes are two calls of node.Run, as in `lockstep serve`, with store, replication, failover and all gRPC
// services. The clients use the client package. A simulation runs in one testing/synctest bubble, so a timeout of a
// second takes no real time. The simulated components are
//
//	test/simnet          TCP: connections with latency, one-way cuts, silence, resets and refusals
//	disk_test.go         the disk: memfs.FS, which loses unsynced data in a power failure, and can be slow, block or fail
//	coordinator_test.go  the link to the coordinator, failover/coordinator/memory: silence, outages, swaps with an
//	                     unknown outcome
//	host_test.go         the machine: starts, kills, power failures, reboots, and a service manager
//	plan_test.go         the faults, generated from the seed
//	disks_test.go        older images, copies, swaps and losses of disks, generated from the seed (TestDisks)
//
// Workload, history and checker are those of test/cluster. The workload has publishers and consumers, applications
// with short deadlines, and side clients. The applications retry calls with an unknown outcome and rely on the
// documented meaning of every error. The side clients publish to each node regardless of its role. The pair must be
// in sync and serve within 20 simulated seconds after the last fault. Then the test checks every guarantee, compares
// the contents of both stores, and verifies their files.
//
// # Seeds
//
//	go test ./test/simulation                           20 seeds
//	go test -tags deep ./test/simulation                300 seeds
//	go test ./test/simulation -v -seeds=10000           10,000 seeds; prints the totals
//	go test ./test/simulation -run TestSimulation -seed=17 -v    one seed, with the logs of both nodes
//
// TestDisks does the same for disk moves, in 60 seeds (4 in the default tier): disks are moved between hosts. Where
// the documentation states that the nodes wait for an operator, the simulation acts as the operator, and no message
// may be lost.
//
// The seed determines settings, workload, the plan of faults, and the data that a disk loses. It does not determine
// the order in which the Go scheduler runs goroutines that are ready at the same instant, nor UUIDs. A failure that
// depends on them may require several replays (-count=20).
//
// A fault is counted when it takes effect. A run of at least 300 seeds fails if a kind of fault never took effect, or
// if an outcome of the application calls never occurred. With LOCKSTEP_KEEP=dir, the history of a failed seed is kept
// in that directory.
//
// # Limits
//
// All goroutines of a bubble share one clock, so the clocks of two nodes cannot drift apart. A process cannot be
// suspended between two instructions while the other process runs. The fault "freeze" stops all its I/O instead;
// test/chaos uses SIGSTOP.
//
// In TestSimulation, the coordinator drops the lease of a killed process immediately. In TestDisks, the lease lasts
// until it expires, as with etcd.
//
// For synctest, a goroutine that waits for a sync.Mutex is not idle: a goroutine that slept with a contended lock
// held would stop the clock. So disk delays affect only writes and syncs of the log, which is designed for delays
// under its locks (store/wal).
package simulation
