// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParsePartition(t *testing.T) {
	for _, p := range []Partition{{"orders", 0, 2}, {"a/b{c}", 9, 10}, {"orders", 63, 64}} {
		require.NoError(t, CheckQueueName(p.Name()))
		parsed, ok := ParsePartition(p.Name())
		require.True(t, ok)
		require.Equal(t, p, parsed)
		require.True(t, NeedsFeature(p.Name()))
	}
	for _, name := range []string{
		"orders#", "orders#0", "orders#0/", "orders#0/1", "orders#2/2", "orders#0/65", "orders#00/2", "orders#0/02",
		"orders#-1/2", "orders#+1/2", "#0/2", "orders#0/2#0/2", "orders#0/2/", "orders#0/100", "or ders#0/2",
	} {
		require.ErrorIs(t, CheckQueueName(name), ErrInvalidName, name)
	}
	require.Error(t, CheckName("orders#0/2"), "not the name of a subscription")
}

func TestMatchQueue(t *testing.T) {
	for _, glob := range []string{"orders", "orders#0/2", "orders#*", "ord*", "*"} {
		require.True(t, MatchQueue(glob, "orders#0/2"), glob)
	}
	for _, glob := range []string{"orders#1/2", "order", "orders.*"} {
		require.False(t, MatchQueue(glob, "orders#0/2"), glob)
	}
	require.False(t, MatchQueue("orders#*", "orders"))
}

// A queue with any valid name can move.
func TestNamesOfMovedQueues(t *testing.T) {
	var r Reader
	require.NoError(t, r.Reset(build(t, func(b *Builder) {
		b.ImportBegin(1, "p", []ImportQueue{{"orders{eu}", 1, false}, {"orders#0/2", 2, false}})
	})))
	op, err := r.Next()
	require.NoError(t, err)
	var names []string
	for q := range op.Moved {
		names = append(names, q.Name)
	}
	require.Equal(t, []string{"orders{eu}", "orders#0/2"}, names)
}
