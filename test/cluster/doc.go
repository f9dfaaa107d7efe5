// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package cluster runs real pairs of Lockstep nodes for tests: nodes in separate processes, an etcd or a witness, links
// that can be cut, and clients that record all responses.
//
// The parts can be used separately:
//
//   - Build compiles the binary.
//   - Pair extends the Pair of test/harness, which `lockstep demo` and `bench` also use. The harness starts, kills
//     (SIGKILL), pauses (SIGSTOP), wakes (SIGCONT) and restarts nodes, cuts links, and stops and restarts etcd. This
//     package adds disk, clock and network faults. Disk and clock faults require a special build.
//   - Proxy is a TCP relay with a link that can be cut (which holds data) or reset.
//   - Workload publishes and consumes through the client package, and records everything in a historycheck.History.
//     History.Check verifies the responses that clients received.
package cluster
