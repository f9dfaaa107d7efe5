// SPDX-License-Identifier: Apache-2.0

package progress_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// recorder is a Show that records its calls.
type recorder struct {
	lines []string
	bars  map[*progress.Bar]string
}

func (r *recorder) Set(b *progress.Bar, s progress.Step) { r.bars[b] = s.Phase }
func (r *recorder) End(b *progress.Bar, format string, args ...any) {
	r.bars[b] = fmt.Sprintf(format, args...)
}

func (r *recorder) Line(format string, args ...any) {
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

// During a whole plan, a view displays a bar for each node, names instead of IDs, and a line for each change.
func TestPlanView(t *testing.T) {
	show := &recorder{bars: make(map[*progress.Bar]string)}
	bars := map[string]*progress.Bar{}
	v := progress.NewView(show, []string{"a:1", "b:1"}, func(address string) *progress.Bar {
		bars[address] = progress.NewBar(address)
		return bars[address]
	})
	node := func(id, name string, role pb.Role) *pb.GetStatusResponse {
		return &pb.GetStatusResponse{
			Node: &pb.NodeStatus{NodeId: id, Name: name}, Role: role,
			Store: &pb.StoreStatus{PageSize: 4096},
		}
	}
	a, b := node("1", "a", pb.Role_ROLE_ACTIVE), node("2", "b", pb.Role_ROLE_STANDBY)
	plan := &pb.Plan{
		Kind: pb.PlanKind_PLAN_KIND_RESIZE, PageSize: 4096, State: pb.PlanState_PLAN_STATE_REWRITING,
		Node: "2",
	}
	update := func(active string) {
		v.Update(progress.Snapshot{
			At: time.Now(), Active: active, Plan: plan,
			Nodes: map[string]*pb.GetStatusResponse{"a:1": a, "b:1": b},
		})
	}
	b.Maintenance = &pb.MaintenanceActivity{
		Operation: "rewrite",
		Progress:  &pb.Progress{Phase: "copy", DoneBytes: 1, TotalBytes: 2},
	}
	update("a:1")
	update("a:1")
	require.Equal(t, "copy", show.bars[bars["b:1"]])
	require.Contains(t, show.bars[bars["a:1"]], "waiting")
	require.Len(t, show.lines, 1)
	require.Contains(t, show.lines[0], "node b ")

	b.Maintenance, plan.DoneNodes, plan.State = nil, []string{"2"}, pb.PlanState_PLAN_STATE_SWITCHING
	update("a:1")
	require.Contains(t, show.bars[bars["b:1"]], "done, ")

	a, plan.State, plan.Node, plan.Retries = nil, pb.PlanState_PLAN_STATE_WAITING, "1", 1
	update("b:1")
	require.Contains(t, show.bars[bars["a:1"]], "not respond")
	require.Len(t, show.lines, 4)
	for i, part := range []string{"switching", "node b ", "(retries: 1)"} {
		require.Contains(t, show.lines[1+i], part)
	}

	plan.State, plan.Reason = pb.PlanState_PLAN_STATE_FAILED, "no space"
	a = node("1", "a", pb.Role_ROLE_STANDBY)
	update("b:1")
	require.Contains(t, show.bars[bars["a:1"]], "not rewritten")
	last := show.lines[len(show.lines)-1]
	require.Contains(t, last, "FAILED")
	require.Contains(t, last, plan.GetReason())
}
