// SPDX-License-Identifier: Apache-2.0

package dupdetect

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
)

func TestTracker(t *testing.T) {
	t.Parallel()
	node := failover.NodeInfo{ID: uuid.New()}
	at := func(process string, seq int64) Entry {
		return Entry{Live: failover.Live{Node: node, Process: process}, Seq: seq}
	}
	elsewhere := Entry{Live: failover.Live{Node: failover.NodeInfo{ID: uuid.New()}, Process: "x"}, Seq: 99}
	stale := func(process string) *failover.Duplicate {
		return &failover.Duplicate{Live: at(process, 0).Live, Stale: true}
	}
	alive := func(process string) *failover.Duplicate { return &failover.Duplicate{Live: at(process, 0).Live} }

	var tr Tracker
	require.Nil(t, tr.See(0, []Entry{at("p", 1)}), "this process is not announced")
	tr.Begin(at("own", 0).Live)
	for i, step := range []struct {
		epoch uint64
		seen  []Entry
		want  *failover.Duplicate
	}{
		{0, []Entry{elsewhere}, nil},
		{0, []Entry{at("p", 5)}, stale("p")},               // before this process was seen
		{0, []Entry{at("p", 5), at("own", 6)}, stale("p")}, // an earlier process of this node
		{0, []Entry{at("own", 7)}, nil},                    // its lease expired
		{0, []Entry{at("p", 8), at("own", 7)}, alive("p")}, // the other process was still running
		{0, []Entry{at("q", 4), at("p", 8), at("own", 9)}, alive("p")},
		{1, []Entry{at("p", 1), at("own", 2)}, alive("p")}, // another source
		{1, []Entry{at("own", 3)}, nil},
		{1, []Entry{at("p", 1), at("own", 3)}, stale("p")},
	} {
		require.Equal(t, step.want, tr.See(step.epoch, step.seen), "step %d", i)
	}
	tr.Begin(at("own", 0).Live)
	again := at("own", 7)
	again.First = 4
	require.Equal(t, stale("p"), tr.See(0, []Entry{at("p", 3), again}))
	require.Equal(t, alive("p"), tr.See(0, []Entry{at("p", 5), again}), "between two announcements of this process")
	tr.Begin(at("own", 0).Live)
	require.True(t, tr.Unknown([]Entry{at("p", 1)}))
	require.False(t, tr.Unknown([]Entry{at("p", 1), elsewhere, at("own", 1)}))
	tr.End()
	require.Nil(t, tr.See(1, []Entry{at("p", 1)}))
}
