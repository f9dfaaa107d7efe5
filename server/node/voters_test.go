// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/observe/metrics"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// A voter is up if it responds with the expected identity and is a member that is not fenced. The lag is reported
// only for such voters.
func TestVoterMetrics(t *testing.T) {
	m := func(id string) raft.Member {
		return raft.Member{ID: id, Address: id + ":1", Kind: raft.KindNode}
	}
	got := voterMetrics([]voterResponse{
		{member: m("a"), status: raft.Status{ID: "a", Member: true, LastIndex: 10}},
		{member: m("b"), status: raft.Status{ID: "b", Member: true, LastIndex: 7}},
		{member: m("c"), err: errors.New("no response")},
		{member: m("d"), status: raft.Status{ID: "another", Member: true, LastIndex: 99}},
		{member: m("e"), status: raft.Status{
			ID: "e", Member: true, LastIndex: 9,
			Fenced: raft.FencedRolledBack,
		}},
	})
	up := func(id string, up bool, behind uint64) metrics.Voter {
		return metrics.Voter{Address: id + ":1", Kind: "node", Up: up, Behind: behind}
	}
	require.Equal(t, []metrics.Voter{
		up("a", true, 0), up("b", true, 3), up("c", false, 0), up("d", false, 0),
		up("e", false, 0),
	}, got)
}

// noDirect is a filesystem that does not support O_DIRECT.
type noDirect struct{ vfs.FS }

func (noDirect) TakesDirect(string) bool { return false }

// A filesystem that cannot bypass the page cache is reported if memory.page-cache requests a bypass.
func TestPageCacheConditions(t *testing.T) {
	for use, want := range map[string]bool{"auto": true, "drop": true, "keep": false} {
		c := config.Default()
		c.Memory.PageCache = use
		require.Equal(t, want, fallsBack(noDirect{vfs.OS()}, &c), use)
		require.False(t, fallsBack(memfs.New(), &c), "%s: unknown filesystem", use)
	}
}
