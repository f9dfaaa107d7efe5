// SPDX-License-Identifier: Apache-2.0

// Package timing has tests of how long a pair with the default failover settings takes: for a switchover, a stop, the
// drop of a standby, a takeover, and what clients see of each. Whole nodes run in simulated time (test/simpair), so
// that a bound does not depend on the machine. The network takes 1 ms for each message; disk and coordinator take no
// time.
//
// The tests in test/chaos of the same names do the same with processes. There a busy machine can be taken for a dead
// node, so that they run with long timeouts and do not bound times.
package timing
