// SPDX-License-Identifier: Apache-2.0

// Package audit compares the responses received by clients of a pair with the stored messages. A workload records
// everything in a History, and History.Check reports violations. Examples are acknowledged messages that are lost,
// stored twice or out of order. Other examples are messages delivered again after their acknowledgement was confirmed,
// and messages delivered but never committed. `lockstep demo` and the tests of whole pairs (test/chaos,
// test/simulation) use it.
package audit
