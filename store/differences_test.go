// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
)

// Differences lists queues that differ in any field, or exist in one state only.
func TestQueueDifferences(t *testing.T) {
	here := store.QueueDigests{Queues: []store.QueueDigest{
		{ID: 1, Name: "equal", Digest: 7}, {ID: 2, Name: "changed", Digest: 7, Messages: 3}, {ID: 3, Name: "here"},
	}}
	there := store.QueueDigests{Queues: []store.QueueDigest{
		{ID: 4, Name: "there"}, {ID: 2, Name: "changed", Digest: 8, Messages: 3}, {ID: 1, Name: "equal", Digest: 7},
	}}
	require.Empty(t, here.Differences(&here))
	found := here.Differences(&there)
	require.Equal(t, []store.QueueDifference{
		{Here: &here.Queues[1], There: &there.Queues[1]}, {Here: &here.Queues[2]}, {There: &there.Queues[0]},
	}, found)
	require.Equal(t, "there", found[2].Name())
}
