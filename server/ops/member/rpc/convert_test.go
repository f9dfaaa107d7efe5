// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func TestPairStates(t *testing.T) {
	seen := make(map[pb.PairState]bool)
	for _, s := range []fleet.State{
		fleet.StateOpen, fleet.StateDraining, fleet.StateJoining, fleet.StateLeaving, fleet.StateForgotten,
	} {
		seen[stateToProto(s)] = true
	}
	require.Len(t, seen, len(pb.PairState_name)-1)
	require.NotContains(t, seen, pb.PairState_PAIR_STATE_UNSPECIFIED)
}
