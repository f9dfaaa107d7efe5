// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/nodes"
	"github.com/lockstep-mq/lockstep/cmd/internal/out"
	"github.com/lockstep-mq/lockstep/store"
)

// status never recommends removing the only copy of messages. A quarantined store may be removed when both nodes are in
// sync. A truncated log tail is described as such.
func TestStatusKeepsTheOnlyCopy(t *testing.T) {
	aside := []nodes.Left{{Path: "/data/damaged-1", Kind: store.LeftDamagedStore, Bytes: 1024}}
	both := []string{"a", "b"}
	const removable = "may be removed: /data/damaged-1 (1.0 KiB)"
	for name, c := range map[string]struct {
		pair   *nodes.Pair
		nodes  []nodes.Node
		remove bool
	}{
		"both in sync": {
			&nodes.Pair{InSync: both},
			[]nodes.Node{{Name: "a", Role: "active"}, {Name: "b", Role: "standby", LeftBehind: aside}},
			true,
		},
		"no pair": {nil, []nodes.Node{{Name: "a", Role: "active-alone", LeftBehind: aside}}, true},
		"the only one in sync": {
			&nodes.Pair{InSync: both[1:]},
			[]nodes.Node{{Name: "b", Role: "recovering", LeftBehind: aside}},
			false,
		},
		"the other one is alone": {
			&nodes.Pair{InSync: both[:1]},
			[]nodes.Node{{Name: "a", Role: "active-alone"}, {Name: "b", Role: "syncing", LeftBehind: aside}},
			false,
		},
		"waits in sync": {
			&nodes.Pair{InSync: both},
			[]nodes.Node{{Name: "a", Role: "active"}, {Name: "b", Role: "recovering", LeftBehind: aside}},
			false,
		},
		"forced, not settled": {
			&nodes.Pair{InSync: both, Forced: &nodes.Forced{}},
			[]nodes.Node{{Name: "b", Role: "active", LeftBehind: aside}},
			false,
		},
		"the record is not known": {nil, []nodes.Node{{Name: "b", Role: "recovering", LeftBehind: aside}}, false},
	} {
		text := leftText(t, nodes.Status{Pair: c.pair, Nodes: c.nodes})
		require.Equal(t, c.remove, bytes.Contains(text, []byte(removable)), "%s: %s", name, text)
		require.Equal(t, !c.remove, bytes.Contains(text, []byte("DO NOT REMOVE")), "%s: %s", name, text)
	}
	text := leftText(t, nodes.Status{Pair: &nodes.Pair{InSync: both}, Nodes: []nodes.Node{
		{Name: "a", Role: "active", LeftBehind: []nodes.Left{
			{Path: "/data/cut-1.seg", Kind: store.LeftCutLog},
			{Path: "/data/page.db_old", Kind: store.LeftOldPageFile},
		}},
	}})
	require.Contains(t, string(text), "may be removed: /data/page.db_old (0 B), with lockstep store drop-old --node a\n")
	require.Contains(t, string(text), "not part of the pair are kept on a (lockstep store dump-log FILE --messages "+
		"shows them): /data/cut-1.seg (0 B)\n")
}

func leftText(t *testing.T, s nodes.Status) []byte {
	t.Helper()
	var b bytes.Buffer
	p, err := out.New(&b, "table")
	require.NoError(t, err)
	require.NoError(t, printLeft(&cli.Env{Print: p}, s))
	return b.Bytes()
}
