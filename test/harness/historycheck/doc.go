// SPDX-License-Identifier: Apache-2.0

// Package historycheck holds what clients of a pair were told against what is stored: a workload records everything in a
// History, and History.Check finds what must not be. Messages that were acknowledged and are lost, stored twice, out of
// order, delivered again after their acknowledgement was confirmed, or delivered but never committed. `lockstep demo`
// gets its verdict here, as the tests of whole pairs do (test/chaos, test/simulation).
package historycheck
