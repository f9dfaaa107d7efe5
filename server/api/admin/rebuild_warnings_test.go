// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// The plan of an adoption contains a warning if the node is empty, as the plan of a forced failover does. The record
// of an active node is written again: nothing is lost.
func TestRebuildWarnsAboutEmptyNode(t *testing.T) {
	peer := &pb.AdoptedPeer{Reached: true}
	end := lsn.Position{Term: 6, LSN: 815}
	require.Equal(t, []string{emptyWarning}, warnings(datadir.Identity{}, lsn.Position{}, false, peer))
	require.Empty(t, warnings(datadir.Identity{}, lsn.Position{}, true, peer))
	require.Empty(t, warnings(datadir.Identity{}, end, false, peer))
	require.Len(t, warnings(datadir.Identity{MayHaveLost: true}, lsn.Position{}, false, peer), 2)
}
