// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Each problem of a fleet is a separate condition. The copy of the directory and the settings are those of the node.
func TestFleetConditions(t *testing.T) {
	for name, tt := range map[string]struct {
		fleet *Fleet
		want  []Kind
		node  bool // of the node, not of the pair
	}{
		"no fleet":    {nil, nil, false},
		"no problem":  {&Fleet{Pair: "a", ID: "x", Current: true}, nil, false},
		"unavailable": {&Fleet{Unavailable: "d"}, []Kind{FleetDirectoryUnavailable}, true},
		"lost":        {&Fleet{Lost: "d"}, []Kind{FleetDirectoryLost}, false},
		"conflict":    {&Fleet{Conflict: "d"}, []Kind{FleetConflict}, false},
		"mismatch":    {&Fleet{Mismatch: "d"}, []Kind{FleetMismatch}, true},
		"fenced":      {&Fleet{Fenced: []string{"d"}}, []Kind{FleetQueuesFenced}, false},
		"stuck":       {&Fleet{Stuck: []string{"d"}}, []Kind{FleetMoveStuck}, false},
		"two":         {&Fleet{Lost: "d", Conflict: "d"}, []Kind{FleetDirectoryLost, FleetConflict}, false},
	} {
		f := findings{self: Node{ID: "1"}}
		f.fleet(tt.fleet)
		require.ElementsMatch(t, tt.want, kinds(&f), name)
		for _, r := range f.all {
			require.Equal(t, tt.node, r.Node.ID == "1", name)
			require.Equal(t, "d", r.Details, name)
		}
	}
}
