// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func storePage() Page {
	return Page{
		Path: "/store", Title: "Store", Key: "s", Right: "operate", Template: "store", Live: true, Load: loadStore,
		Actions: []Action{
			{Name: "scan", Title: "Scan", Right: "operate", Dialog: "scan", Load: loadNode, Do: doScan},
			{Name: "shrink", Title: "Shrink", Right: "operate", Dialog: "shrink", Load: loadShrink, Do: doShrink},
			{
				Name: "resize", Title: "Resize both nodes", Right: "operate", Dialog: "resize", Load: loadStore,
				Do: doResize,
			},
			{Name: "compact", Title: "Compact both nodes", Right: "operate", Dialog: "compact", Do: doCompact},
			{Name: "cancel-plan", Title: "Cancel the plan", Right: "operate", Dialog: "cancel-plan", Do: doCancelPlan},
			{Name: "stop", Title: "Stop operation", Right: "operate", Dialog: "stop", Do: doStopTask},
			{
				Name: "drop-old", Title: "Remove page.db_old", Right: "operate", Dialog: "drop-old", Danger: true,
				Load: loadNode, Do: doDropOld,
			},
			{
				Name: "checkpoint", Title: "Write a checkpoint", Right: "operate", Dialog: "checkpoint", Load: loadNode,
				Do: doCheckpoint,
			},
		},
	}
}

type storeView struct {
	Nodes    []*nodeView
	Alone    bool
	Settings *pb.MaintenanceSettings
	Plan     *planView
	Tasks    []task
}

func loadStore(ctx context.Context, v *View) (any, error) {
	settings, err := pb.NewMaintenanceServiceClient(v.Own()).GetSettings(ctx, &pb.GetSettingsRequest{})
	if err != nil {
		return nil, err
	}
	nodes, err := v.nodes(ctx)
	if err != nil {
		return nil, err
	}
	own, err := v.Status(ctx)
	if err != nil {
		return nil, err
	}
	d := &storeView{
		Nodes: nodes, Settings: settings.GetSettings(), Tasks: v.server.tasks.list(),
		Alone: len(own.GetPair().GetNodes()) < 2,
	}
	plan := own.GetPlan()
	for _, n := range nodes {
		if n.serves() && n.Status.GetPlan() != nil {
			plan = n.Status.GetPlan()
		}
	}
	d.Plan = viewPlan(plan, nodes)
	return d, nil
}

type planView struct {
	*pb.Plan

	Title   string
	State   label
	Steps   []step
	Running bool
	Node    string
}

type step struct {
	Title string
	State label
}

func viewPlan(p *pb.Plan, nodes []*nodeView) *planView {
	if p == nil {
		return nil
	}
	name := func(id string) string {
		for _, n := range nodes {
			if n.Info.GetNodeId() == id {
				return n.Name()
			}
		}
		return short(id)
	}
	d := &planView{Plan: p, Node: name(p.GetNode()), Running: true}
	work := "restart"
	switch p.GetKind() {
	case pb.PlanKind_PLAN_KIND_RESIZE:
		d.Title, work = "Rolling resize to "+formatBytes(p.GetPageSize()), "resize"
	case pb.PlanKind_PLAN_KIND_COMPACT:
		d.Title, work = "Rolling compaction", "compact"
	default:
		d.Title = "Rolling restart"
	}
	word := strings.ReplaceAll(strings.TrimPrefix(p.GetState().String(), "PLAN_STATE_"), "_", " ")
	d.State = label{strings.ToLower(word), "info"}
	switch p.GetState() {
	case pb.PlanState_PLAN_STATE_DONE:
		d.State.Class, d.Running = "good", false
	case pb.PlanState_PLAN_STATE_FAILED:
		d.State.Class, d.Running = "bad", false
	case pb.PlanState_PLAN_STATE_CANCELLED:
		d.State.Class, d.Running = "warn", false
	default:
	}
	d.Steps = planSteps(p, name, work, nodes)
	return d
}

func planSteps(p *pb.Plan, name func(string) string, work string, nodes []*nodeView) []step {
	first := p.GetFirstActive()
	other := ""
	for _, n := range nodes {
		if n.Info.GetNodeId() != first {
			other = n.Info.GetNodeId()
		}
	}
	done := len(p.GetDoneNodes())
	switching := p.GetState() == pb.PlanState_PLAN_STATE_SWITCHING
	finished := p.GetState() == pb.PlanState_PLAN_STATE_DONE
	at := done * 2 // index of the current step; the steps are work, switch, work, switch back
	if done == 1 && (switching || p.GetNode() != first) {
		at = 1
	}
	titles := []string{
		work + " " + name(other), "switch over to " + name(other), work + " " + name(first),
	}
	if p.GetSwitchBack() {
		titles = append(titles, "switch back to "+name(first))
	}
	if done >= 2 {
		at = len(titles) - 1
		if !p.GetSwitchBack() {
			at = len(titles)
		}
	}
	steps := make([]step, 0, len(titles))
	for i, title := range titles {
		s := step{Title: title, State: label{"to do", ""}}
		switch {
		case finished || i < at:
			s.State = label{"done", "good"}
		case i == at:
			s.State = label{"now", "info"}
			if p.GetState() == pb.PlanState_PLAN_STATE_FAILED {
				s.State = label{"failed", "bad"}
			} else if p.GetState() == pb.PlanState_PLAN_STATE_CANCELLED {
				s.State = label{"canceled", "warn"}
			}
		}
		steps = append(steps, s)
	}
	return steps
}

// Used returns the used percentage of the node's page file.
func (n *nodeView) Used() int {
	return percent(n.Status.GetStore().GetPagesUsed(), n.Status.GetStore().GetPages())
}

func (n *nodeView) UsedBytes() uint64 {
	return n.Status.GetStore().GetPagesUsed() * uint64(n.Status.GetStore().GetPageSize())
}

func (n *nodeView) FreeBytes() uint64 { return n.FileBytes() - min(n.UsedBytes(), n.FileBytes()) }

// OldFile returns the size of the old page file that a rewrite retained. It returns 0 without such a file.
func (n *nodeView) OldFile() uint64 {
	for _, l := range n.Status.GetStore().GetUnusedFiles() {
		if l.GetKind() == "old-page-file" {
			return l.GetBytes()
		}
	}
	return 0
}

// maintenance returns the maintenance client of the node named in the request, or of this node if the request names
// none.
func (v *View) maintenance(ctx context.Context) (pb.MaintenanceServiceClient, error) {
	cc, err := v.Node(ctx, v.Get("node"))
	if err != nil {
		return nil, err
	}
	return pb.NewMaintenanceServiceClient(cc), nil
}

// node returns the node named in the request. If the request names none, it returns this node.
func (v *View) node(ctx context.Context) (*nodeView, error) {
	nodes, err := v.nodes(ctx)
	if err != nil {
		return nil, err
	}
	for _, n := range nodes {
		if n.Info.GetNodeId() == v.Get("node") || v.Get("node") == "" && n.Own {
			return n, nil
		}
	}
	return nil, invalid("Node not found.")
}

func loadNode(ctx context.Context, v *View) (any, error) { return v.node(ctx) }

// nodeAndMaintenance returns the node named in the request, and the maintenance client of that node.
func (v *View) nodeAndMaintenance(ctx context.Context) (*nodeView, pb.MaintenanceServiceClient, error) {
	n, err := v.node(ctx)
	if err != nil {
		return nil, nil, err
	}
	m, err := v.maintenance(ctx)
	return n, m, err
}

func doScan(ctx context.Context, v *View) (Done, error) {
	to, err := withQuery("/scan", "node", v.Get("node"))
	if err != nil {
		return Done{}, err
	}
	err = v.beginOnNode(ctx, task{Title: "Scan", Link: to}, func(
		ctx context.Context, m pb.MaintenanceServiceClient, report func(*pb.Progress),
	) (string, error) {
		in, err := m.Scan(ctx, &pb.ScanRequest{FullSpeed: v.Get("full_speed") != ""})
		if err != nil {
			return "", err
		}
		r, err := result(in, report, (*pb.ScanResponse).GetResult)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("%s messages; the best page size is %s.", formatNumber(r.GetMessages()),
			formatBytes(r.GetRecommended())), nil
	})
	return Done{Message: "Scan started.", Goto: "/store"}, err
}

type shrinkView struct {
	Node *nodeView
	R    *pb.ShrinkResponse
}

func loadShrink(ctx context.Context, v *View) (any, error) {
	n, m, err := v.nodeAndMaintenance(ctx)
	if err != nil {
		return nil, err
	}
	r, err := m.Shrink(ctx, &pb.ShrinkRequest{DryRun: true})
	return &shrinkView{n, r}, err
}

func doShrink(ctx context.Context, v *View) (Done, error) {
	err := v.beginOnNode(ctx, task{
		Title: "Shrink", Partial: "page.db may be smaller already. Messages are not affected.",
	}, func(
		ctx context.Context, m pb.MaintenanceServiceClient, _ func(*pb.Progress),
	) (string, error) {
		r, err := m.Shrink(ctx, &pb.ShrinkRequest{})
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("page.db: %s before, %s after.", formatBytes(r.GetFileBytesBefore()),
			formatBytes(r.GetFileBytesAfter())), nil
	})
	return Done{Message: "Shrink started.", Goto: "/store"}, err
}

func doResize(ctx context.Context, v *View) (Done, error) {
	size, err := strconv.ParseUint(v.Form.Get("page_size"), 10, 32)
	if err != nil {
		return Done{}, invalid("Choose a page size.")
	}
	return startPlan(ctx, v, &pb.StartPlanRequest{
		Kind: pb.PlanKind_PLAN_KIND_RESIZE, PageSize: uint32(size), SwitchBack: v.Form.Get("switch_back") != "",
	})
}

func doCompact(ctx context.Context, v *View) (Done, error) {
	return startPlan(ctx, v, &pb.StartPlanRequest{
		Kind: pb.PlanKind_PLAN_KIND_COMPACT, SwitchBack: v.Form.Get("switch_back") != "",
	})
}

func startPlan(ctx context.Context, v *View, req *pb.StartPlanRequest) (Done, error) {
	_, err := pb.NewMaintenanceServiceClient(v.Own()).StartPlan(ctx, req)
	return Done{Message: "Plan started; the standby is first.", Goto: "/store"}, err
}

func doCancelPlan(ctx context.Context, v *View) (Done, error) {
	_, err := pb.NewMaintenanceServiceClient(v.Own()).CancelPlan(ctx, &pb.CancelPlanRequest{})
	return Done{Message: "The plan stops at the next safe point."}, err
}

// doStopTask cancels an operation that was started on this console. It requires the operate right.
func doStopTask(ctx context.Context, v *View) (Done, error) {
	_, err := pb.NewMaintenanceServiceClient(v.Own()).GetSettings(ctx, &pb.GetSettingsRequest{})
	if err != nil {
		return Done{}, err
	}
	return Done{Message: "Stopping."}, v.server.tasks.stop(v.Get("task"))
}

func doDropOld(ctx context.Context, v *View) (Done, error) {
	m, err := v.maintenance(ctx)
	if err != nil {
		return Done{}, err
	}
	r, err := m.DropOld(ctx, &pb.DropOldRequest{})
	return Done{Message: formatBytes(r.GetBytes()) + " released."}, err
}

func doCheckpoint(ctx context.Context, v *View) (Done, error) {
	cc, err := v.Node(ctx, v.Get("node"))
	if err != nil {
		return Done{}, err
	}
	r, err := pb.NewAdminServiceClient(cc).Checkpoint(ctx, &pb.CheckpointRequest{})
	return Done{Message: fmt.Sprintf("Wrote checkpoint %d at LSN %s.", r.GetCheckpoint(), formatNumber(r.GetLsn()))}, err
}
