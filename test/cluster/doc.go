// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package cluster runs real pairs of Lockstep nodes for tests: the built binary in separate processes, an embedded
// etcd, cut links, and a client that records all responses.
//
// The parts can be used separately:
//
//   - Build compiles the binary once for a test process.
//   - Pair is that of test/harness, which `lockstep demo` and `bench` also use: it starts, kills (SIGKILL),
//     pauses (SIGSTOP), wakes (SIGCONT) and restarts nodes, cuts links, and stops and restarts etcd. This package
//     adds disk, clock and network faults, which require a special build.
//   - Proxy is a TCP relay whose link can be cut (silence) or reset.
//   - Workload publishes and consumes through the client package, and records everything in a historycheck.History.
//     Its Check verifies the responses that clients received.
package cluster
