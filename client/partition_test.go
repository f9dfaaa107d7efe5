// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
)

// These partitions are part of the protocol: docs/reference/protocol.md and the tests of the Python client contain
// them.
func TestPartition(t *testing.T) {
	for _, v := range []struct {
		group          string
		of2, of3, of64 int
	}{
		{"a", 1, 2, 58},
		{"b", 0, 1, 28},
		{"customer-7", 0, 0, 0},
		{"customer-8", 1, 1, 36},
		{"0123456789abcdef", 0, 1, 26},
		{"größe", 0, 1, 22},
	} {
		require.Equal(t, [3]int{v.of2, v.of3, v.of64},
			[3]int{client.Partition(v.group, 2), client.Partition(v.group, 3), client.Partition(v.group, 64)}, v.group)
	}
	require.Equal(t, "orders#3/8", client.PartitionName("orders", 3, 8))
}

// The groups of consecutive numbers are distributed evenly.
func TestPartitionSpread(t *testing.T) {
	const groups = 64_000
	for _, count := range []int{2, 3, 7, 8, 16, 64} {
		counts := make([]int, count)
		for i := range groups {
			counts[client.Partition("customer-"+strconv.Itoa(i), count)]++
		}
		for i, n := range counts {
			require.InEpsilon(t, groups/count, n, 0.2, "partition %d of %d", i, count)
		}
	}
}
