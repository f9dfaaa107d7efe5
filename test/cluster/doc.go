// SPDX-License-Identifier: Apache-2.0

//go:build unix

// Package cluster runs real pairs of Lockstep nodes for tests: the built binary in processes of its own, an embedded
// etcd, cut links, and a client that records what it was told.
//
// The pieces, each usable without the others:
//
//   - Build compiles the binary once for a test process.
//   - Pair is that of test/harness, which `lockstep demo` and `bench` use, too: it starts, kills (SIGKILL),
//     pauses (SIGSTOP), wakes (SIGCONT) and restarts nodes, cuts links, and stops and restarts etcd. What is added here
//     breaks disks, clocks and networks, for which a program is built specially.
//   - Proxy is a TCP relay whose link can be cut (silence) or reset.
//   - Workload publishes and consumes through the client package, and records everything in an audit.History, whose
//     Check says whether the clients were told the truth.
package cluster
