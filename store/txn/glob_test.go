// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// MatchGlob matches * and ? against whole names in polynomial time. LiteralPrefix returns the part before the first
// wildcard.
func TestMatchGlob(t *testing.T) {
	for _, tt := range []struct {
		glob, name string
		want       bool
	}{
		{"", "", true},
		{"", "a", false},
		{"*", "", true},
		{"*", "team-a/orders.eu", true},
		{"orders", "orders", true},
		{"orders", "orders2", false},
		{"orders.*", "orders.eu", true},
		{"orders.*", "orders.", true},
		{"orders.*", "orders", false},
		{"*.eu", "orders.eu", true},
		{"*.eu", "orders.eu.x", false},
		{"team-a/*", "team-a/b/c", true},
		{"a?c", "abc", true},
		{"a?c", "ac", false},
		{"*a*b*", "xxaxxbxx", true},
		{"*a*b*", "xxbxxaxx", false},
		{"**", "x", true},
		{"*x", "xxxx", true},
		{"?", "", false},
		{"a", "", false},
	} {
		require.Equal(t, tt.want, MatchGlob(tt.glob, tt.name), "%q %q", tt.glob, tt.name)
	}
	// A backtracking matcher would take exponential time.
	require.False(t, MatchGlob(strings.Repeat("*a", 120)+"b", strings.Repeat("a", 255)))
	require.Equal(t, "orders.", LiteralPrefix("orders.*"))
	require.Equal(t, "a", LiteralPrefix("a?b*"))
	require.Equal(t, "orders", LiteralPrefix("orders"))
}
