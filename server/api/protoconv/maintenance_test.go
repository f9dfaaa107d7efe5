// SPDX-License-Identifier: Apache-2.0

package protoconv

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
)

// Each kind and each state of a plan has a separate enum value.
func TestPlanKindsAndStates(t *testing.T) {
	kinds, states := map[pb.PlanKind]bool{0: true}, map[pb.PlanState]bool{0: true}
	for _, k := range []maintenance.PlanKind{maintenance.PlanResize, maintenance.PlanCompact, maintenance.PlanRestart} {
		kinds[planKindToProto(k)] = true
		require.Equal(t, k, PlanKindFromProto(planKindToProto(k)))
	}
	for _, s := range []maintenance.PlanState{
		maintenance.PlanWaiting, maintenance.PlanRewriting, maintenance.PlanCatchingUp, maintenance.PlanSwitching,
		maintenance.PlanDone, maintenance.PlanFailed, maintenance.PlanCancelled, maintenance.PlanRestarting,
	} {
		states[planStateToProto(s)] = true
	}
	require.Len(t, kinds, len(pb.PlanKind_name))
	require.Len(t, states, len(pb.PlanState_name))
	require.Empty(t, PlanKindFromProto(0))
	require.Empty(t, PlanKindFromProto(99))
}
