// SPDX-License-Identifier: Apache-2.0

// Package historycheck compares the responses that clients of a pair received with the stored messages. A workload
// records all operations in a History. History.Check reports messages that are lost, stored twice, out of order,
// redelivered after a confirmed acknowledgement, or delivered but never committed. `lockstep demo` and tests, such as
// test/chaos and test/simulation, use the package.
package historycheck
