// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// tally counts effective faults by kind.
type tally map[string]int

func (c tally) count(kind string) { c[kind]++ }

// require fails the test if a kind of fault had no effect, because it was not tested.
func (c tally) require(t *testing.T, kinds ...string) {
	t.Helper()
	for _, k := range kinds {
		assert.NotZero(t, c[k], "%s had no effect", k)
	}
}

// String returns a table with one kind per line.
func (c tally) String() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&b, "%6d  %s\n", c[k], k)
	}
	return b.String()
}
