// SPDX-License-Identifier: Apache-2.0

// Package timing tests how long a pair with the default failover settings takes for a switchover, a stop, the drop of
// a standby and a takeover, and their effects on clients. Whole nodes run in simulated time (test/simpair), so a
// bound does not depend on the machine. The network takes 1 ms for each message; disk and coordinator take no time.
//
// The tests in test/chaos of the same names do the same with processes. There a busy machine can look like a failed
// node, so they run with long timeouts and do not bound times.
package timing
