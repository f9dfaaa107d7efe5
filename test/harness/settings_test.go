// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Settings with dotted keys become nested maps.
func TestYAML(t *testing.T) {
	require.Equal(t, "a: \"1\"\nb:\n  c:\n    d: \"2\"\n    e: \"3\"\n  f: \"4\"\ng: \"5\"\n",
		yaml(map[string]string{"a": "1", "b.c.d": "2", "b.c.e": "3", "b.f": "4", "g": "5"}))
}
