// SPDX-License-Identifier: Apache-2.0

// Package historycheck compares the responses that clients of a pair received with the stored messages. A workload
// records all operations in a History; History.Check reports acknowledged messages that are lost, stored twice, out of
// order, delivered again after their acknowledgement was confirmed, or delivered but never committed. `lockstep demo`
// and the tests of whole pairs use it (test/chaos, test/simulation).
package historycheck
