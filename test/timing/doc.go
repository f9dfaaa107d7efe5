// SPDX-License-Identifier: Apache-2.0

// Package timing tests how long switchovers, stops, takeovers and the drop of a standby take with the default failover
// settings, and how they affect clients. Complete nodes run in simulated time (test/simpair), so the limits do not
// depend on the machine. The network takes 1 ms for each message; disk and coordinator take no time.
//
// Tests with the same names in test/chaos use real processes. On a busy machine, a process may be as slow as a failed
// one, so those tests use long timeouts and do not limit durations.
package timing
