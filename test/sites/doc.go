// SPDX-License-Identifier: Apache-2.0

// Package sites simulates pairs at two sites under faults: TestSites with planned switches of the primary site, and
// TestPromotions with unplanned promotions.
//
// The four nodes are calls of node.Run in one testing/synctest bubble (test/simpair), with a simulated network, disk,
// clock and one coordinator per pair. The link between the sites takes 20 ms in each direction.
//
// TestSites runs the workload of test/cluster against all four nodes, with transactions, deduplication, delays,
// expiry and prepared transactions. It adds a schedule and changes of access rules. Faults and switches come from
// the seed. After a failed switch, its takeover is delivered again to all nodes. Within a minute after the last
// fault, both pairs must be in sync, one of them the primary and the other pair its replica. TestSites then requires
// that no message is lost, duplicated or out of order, and that confirmed acknowledgements are permanent. It also
// requires that the two sites did not acknowledge concurrently, and that the contents of all nodes are equal. To
// compare the terms of two pairs, the simulation reports them to the checker with the epoch as the upper half.
//
// At a random moment, TestPromotions kills or cuts off the primary site, or does neither, and then promotes the other
// site. The new primary must have exactly the messages up to its origin. Of the transactions that were acknowledged
// before the last message from the primary, at most as many are lost as the status of the replica reported. The old
// primary stops, and follows if it has no transactions that the new primary lacks.
//
// # Seeds
//
//	go test ./test/sites                              5 seeds of each test
//	go test -tags deep ./test/sites                   100 seeds of each test
//	go test ./test/sites -run TestSites -seeds=1000   1000 seeds; with -v, it prints the totals
//	go test ./test/sites -run TestSites -seed=17 -v   one seed; prints its events
//
// LOCKSTEP_TEST_LOGS=1 prints the logs of the nodes, and LOCKSTEP_KEEP=dir keeps the history of a failed seed of
// TestSites in that directory. The seed does not determine the order in which the Go scheduler runs goroutines that
// are ready at the same instant, nor UUIDs. Reproducing a failure may therefore require several repetitions
// (-count=20).
package sites
