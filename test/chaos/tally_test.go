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

// tally counts what has struck, by kind.
type tally map[string]int

func (c tally) count(kind string) { c[kind]++ }

// require fails a test in which one of the kinds has not struck: nothing is proven about it.
func (c tally) require(t *testing.T, kinds ...string) {
	t.Helper()
	for _, k := range kinds {
		assert.NotZero(t, c[k], "%s never struck, so that nothing is proven about it", k)
	}
}

// String is a table, one kind a line.
func (c tally) String() string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&b, "%6d  %s\n", c[k], k)
	}
	return b.String()
}
