// SPDX-License-Identifier: Apache-2.0

package status

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	"github.com/lockstep-mq/lockstep/store/datadir"
)

// status never recommends removing the only copy of messages. A quarantined store may be removed when both nodes are in
// sync, unless a failover was forced. A truncated log tail is described as such.
func TestStatusReportsLastCopy(t *testing.T) {
	aside := []pairstatus.Left{{Path: "/data/damaged-1", Kind: datadir.LeftDamagedStore, Bytes: 1024}}
	both := []string{"a", "b"}
	const removable = "(can be removed): /data/damaged-1 (1.0 KiB)"
	for name, c := range map[string]struct {
		pair   *pairstatus.Pair
		nodes  []pairstatus.Node
		remove bool
	}{
		"both in sync": {
			&pairstatus.Pair{InSync: both},
			[]pairstatus.Node{{Name: "a", Role: "active"}, {Name: "b", Role: "standby", LeftBehind: aside}},
			true,
		},
		"no pair": {nil, []pairstatus.Node{{Name: "a", Role: "active-alone", LeftBehind: aside}}, true},
		"the only one in sync": {
			&pairstatus.Pair{InSync: both[1:]},
			[]pairstatus.Node{{Name: "b", Role: "recovering", LeftBehind: aside}},
			false,
		},
		"the other one is alone": {
			&pairstatus.Pair{InSync: both[:1]},
			[]pairstatus.Node{{Name: "a", Role: "active-alone"}, {Name: "b", Role: "syncing", LeftBehind: aside}},
			false,
		},
		"waits in sync": {
			&pairstatus.Pair{InSync: both},
			[]pairstatus.Node{{Name: "a", Role: "active"}, {Name: "b", Role: "recovering", LeftBehind: aside}},
			false,
		},
		"forced, not settled": {
			&pairstatus.Pair{InSync: both, Forced: &pairstatus.Forced{}},
			[]pairstatus.Node{{Name: "b", Role: "active", LeftBehind: aside}},
			false,
		},
		"the record is not known": {nil, []pairstatus.Node{{Name: "b", Role: "recovering", LeftBehind: aside}}, false},
	} {
		text := leftText(t, pairstatus.Status{Pair: c.pair, Nodes: c.nodes})
		require.Equal(t, c.remove, bytes.Contains(text, []byte(removable)), "%s: %s", name, text)
		require.Equal(t, !c.remove, bytes.Contains(text, []byte("DO NOT REMOVE")), "%s: %s", name, text)
	}
	forced := &pairstatus.Forced{At: time.Date(2026, 11, 29, 6, 0, 0, 0, time.UTC), Settled: true}
	text := leftText(t, pairstatus.Status{Pair: &pairstatus.Pair{InSync: both, Forced: forced}, Nodes: []pairstatus.Node{
		{Name: "a", Role: "active"}, {Name: "b", Role: "standby", LeftBehind: aside},
	}})
	require.NotContains(t, string(text), "removed)")
	require.Contains(t, string(text), output.LocalTime(forced.At))
	text = leftText(t, pairstatus.Status{Pair: &pairstatus.Pair{InSync: both}, Nodes: []pairstatus.Node{
		{Name: "a", Role: "active", LeftBehind: []pairstatus.Left{
			{Path: "/data/cut-1.seg", Kind: datadir.LeftTruncatedLog},
			{Path: "/data/page.db_old", Kind: datadir.LeftOldPageFile},
		}},
	}})
	require.Contains(t, string(text),
		"(can be removed): /data/page.db_old (0 B); to delete it, use lockstep store drop-old --node a\n")
	require.Contains(t, string(text), "saved records on a that the promoted node or site lacks (to show them, use "+
		"lockstep store dump-log FILE --messages): /data/cut-1.seg (0 B)\n")
}

func leftText(t *testing.T, s pairstatus.Status) []byte {
	t.Helper()
	var b bytes.Buffer
	p, err := output.New(&b, "table")
	require.NoError(t, err)
	require.NoError(t, printLeft(&cli.Env{Print: p}, s))
	return b.Bytes()
}
