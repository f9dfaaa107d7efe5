// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
)

// Each message matches the filter of exactly one part.
func TestPartsAreDisjoint(t *testing.T) {
	o := Order{Parts: 100}
	const messages = 1234
	counted := make([]int, o.Parts)
	for n := 1; n <= messages; n++ {
		var m client.Message
		o.label(&m, int64(n))
		for i := range counted {
			if o.PartFilter(i) == `properties.part == "`+m.Properties[partProperty]+`"` {
				counted[i]++
			}
		}
	}
	sum := 0
	for i, n := range counted {
		require.Equal(t, n, o.PartSize(i, messages), i)
		require.Equal(t, n, o.PartSize(i+o.Parts, messages), "more subscriptions share the parts")
		sum += n
	}
	require.Equal(t, messages, sum)
}
