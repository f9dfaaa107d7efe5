// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package simulation runs whole pairs in simulated time, breaks them in ways that follow from a seed, and proves that
// what clients were told is true.
//
// # What is real
//
// Nearly everything: two times node.Run, as `lockstep serve` calls it, with store, replication, failover and all gRPC
// services, and the client package. A simulation is one testing/synctest bubble, so that a timeout of a second costs
// nothing. Of a test's own are
//
//	test/simnet          TCP: connections with latency, one-way cuts, silence, resets and refusals
//	disk_test.go         the disk: memfs.FS, which loses what was not synced when the power fails; slow, hanging, failing
//	coordinator_test.go  the way to the coordinator, failover/coordinator/memory: silence, outages, swaps with an
//	                     unknown outcome
//	host_test.go         the machine: starts, kills, power failures, boots, and a service manager
//	plan_test.go         the faults, drawn from the seed
//	disks_test.go        older images, copies, swaps and losses of disks, drawn from the seed (TestDisks)
//
// Workload, history and checker are those of test/cluster: publishers and consumers; applications that call with short
// deadlines, repeat what has an unknown outcome, and take every error at its word; and strays that publish to each node
// whatever its role. A pair has to be in sync and to serve again within 20 simulated seconds of the last fault; then
// every promise is checked, the contents of both stores are compared, and their files examined.
//
// # Seeds
//
//	go test ./test/simulation                           30 seeds
//	go test -tags deep ./test/simulation                300 seeds
//	go test ./test/simulation -v -seeds=10000           that many; prints the totals
//	go test ./test/simulation -run TestSimulation -seed=17 -v    one, with the logs of both nodes
//
// TestDisks does the same with what becomes of disks, in 60 seeds (6 in the default tier); a disk is not a part of
// its host there. Where the documented outcome is that the nodes wait for an operator, the simulation is the operator,
// and nothing may be lost by that.
//
// The seed decides settings, workload, the plan of faults, and what a disk loses. It does not decide the order in which
// the Go scheduler runs what can run at the same instant, nor UUIDs: a failure that depends on them takes a few replays
// (-count=20).
//
// Faults are counted when they strike, not when they begin: a default run in which a kind has not struck, or in which
// no call of an application had one of its outcomes, fails. With LOCKSTEP_KEEP=dir the history of a seed that fails is
// kept there.
//
// # What it cannot do
//
// All goroutines of a bubble share one clock, so that clocks of two nodes cannot drift apart, and a process cannot be
// stopped between two instructions while the other one goes on; "freeze" stops all that it exchanges with the world
// instead. test/chaos has SIGSTOP.
//
// The coordinator drops the lease of a process that is killed at once in TestSimulation. In TestDisks it goes
// on until it ends, as with etcd.
//
// A goroutine that waits for a sync.Mutex is not idle for synctest: one that sleeps with a lock held, which another one
// wants, would stop the clock. So nothing simulated waits but reads, and the writes and syncs of the log, whose locks
// are made for it (store/wal).
package simulation
