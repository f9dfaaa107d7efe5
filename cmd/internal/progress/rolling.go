// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Snapshot contains one status of each node, requested concurrently.
type Snapshot struct {
	// At is the time of the last response.
	At time.Time
	// Nodes contains the responses by address; nil for a node that did not respond.
	Nodes map[string]*pb.GetStatusResponse
	// Active is the address of the active node; empty if none.
	Active string
	// Plan is the plan reported by the active, or else by another node; nil if unknown.
	Plan *pb.Plan
}

const responseTimeout = time.Second

// Poll requests the status of all nodes concurrently, for at most responseTimeout.
func Poll(ctx context.Context, c *client.Client, addresses []string) Snapshot {
	ctx, cancel := context.WithTimeout(ctx, responseTimeout)
	defer cancel()
	answers := make([]*pb.GetStatusResponse, len(addresses))
	var wg sync.WaitGroup
	for i, address := range addresses {
		wg.Go(func() {
			n, err := admin.New(c).Node(address)
			if err != nil {
				return
			}
			answers[i], _ = n.Status(ctx) // nil on error
		})
	}
	wg.Wait()
	s := Snapshot{At: time.Now(), Nodes: make(map[string]*pb.GetStatusResponse, len(addresses))}
	var term uint64
	for i, address := range addresses {
		st := answers[i]
		s.Nodes[address] = st
		if st.GetPlan() != nil && s.Plan == nil {
			s.Plan = st.GetPlan()
		}
		if IsActive(st) && (s.Active == "" || st.GetPair().GetTerm() > term) {
			s.Active, term = address, st.GetPair().GetTerm()
		}
	}
	if p := s.Nodes[s.Active].GetPlan(); p != nil {
		s.Plan = p
	}
	return s
}

// IsActive reports whether a node serves clients.
func IsActive(s *pb.GetStatusResponse) bool {
	return s.GetRole() == pb.Role_ROLE_ACTIVE || s.GetRole() == pb.Role_ROLE_ACTIVE_ALONE
}

func (s *Snapshot) name(id string) string {
	for _, st := range s.Nodes {
		if n := st.GetNode(); n.GetNodeId() == id && n.GetName() != "" {
			return n.GetName()
		}
	}
	for _, st := range s.Nodes {
		for _, n := range st.GetPair().GetNodes() { // the other node reports the name of a node that does not respond
			if n.GetNodeId() == id && n.GetName() != "" {
				return n.GetName()
			}
		}
	}
	return id
}

// Show displays bars and lines. Display implements it.
type Show interface {
	Set(b *Bar, s Step)
	End(b *Bar, format string, args ...any)
	Line(format string, args ...any)
}

// View displays a plan: a bar for each node, and a line for each change of the plan's state.
type View struct {
	show  Show
	bars  map[string]*Bar   // by address
	names map[string]string // last known, by address
	ids   map[string]string // last known, by address
	last  string            // last printed line
	act   string            // last known address of the active
}

// NewView creates a view. bar creates the bar of the node at an address.
func NewView(show Show, addresses []string, bar func(address string) *Bar) *View {
	v := &View{
		show: show, bars: make(map[string]*Bar), names: make(map[string]string),
		ids: make(map[string]string),
	}
	for _, a := range addresses {
		v.bars[a] = bar(a)
	}
	return v
}

// Update displays the changes since the previous snapshot.
func (v *View) Update(s Snapshot) {
	if s.Plan == nil {
		return
	}
	for address, st := range s.Nodes {
		if st != nil {
			v.names[address], v.ids[address] = st.GetNode().GetName(), st.GetNode().GetNodeId()
		}
	}
	if s.Active != "" && s.Active != v.act {
		if v.act != "" {
			v.show.Line("node %s is now active", v.names[s.Active])
		}
		v.act = s.Active
	}
	line := DescribePlan(s.Plan, v.nameOf(s))
	if line != v.last {
		v.last = line
		v.show.Line("%s", line)
	}
	for _, address := range slices.Sorted(maps.Keys(v.bars)) {
		v.updateNode(address, s.Nodes[address], s.Plan)
	}
}

// nameOf returns a function that maps node IDs to names, including those of nodes that no longer respond.
func (v *View) nameOf(s Snapshot) func(string) string {
	return func(id string) string {
		for address, known := range v.ids {
			if known == id && v.names[address] != "" {
				return v.names[address]
			}
		}
		return s.name(id)
	}
}

func (v *View) updateNode(address string, st *pb.GetStatusResponse, p *pb.Plan) {
	bar, id := v.bars[address], v.ids[address]
	a := st.GetMaintenance()
	switch done := slices.Contains(p.GetDoneNodes(), id); {
	case p.GetKind() == pb.PlanKind_PLAN_KIND_RESTART:
		v.restarting(bar, id, st, p)
	case done && st != nil:
		v.show.End(bar, "done, pages of %s", output.Bytes(uint64(st.GetStore().GetPageSize())))
	case done:
		v.show.End(bar, "done, but does not respond now")
	case st == nil:
		v.show.End(bar, "does not respond")
	case a.GetProgress().GetPhase() == "done", a == nil && p.GetNode() == id &&
		p.GetState() == pb.PlanState_PLAN_STATE_REWRITING:
		// The rewrite is about to start or has just ended: the bar stays unchanged.
	case a.GetOperation() == "rewrite":
		v.show.Set(bar, StepOf(a.GetProgress()))
	case admin.PlanEnded(p):
		v.show.End(bar, "not rewritten, pages of %s", output.Bytes(uint64(st.GetStore().GetPageSize())))
	case p.GetNode() == id && p.GetState() == pb.PlanState_PLAN_STATE_CATCHING_UP:
		v.show.End(bar, "rewritten, applying records received during the rewrite")
	default:
		v.show.End(bar, "%s, waiting for its turn", RoleName(st))
	}
}

func (v *View) restarting(bar *Bar, id string, st *pb.GetStatusResponse, p *pb.Plan) {
	switch {
	case st == nil:
		v.show.End(bar, "does not respond")
	case slices.Contains(p.GetDoneNodes(), id):
		v.show.End(bar, "%s, restarted, version %s", RoleName(st), st.GetVersion())
	case admin.PlanEnded(p):
		v.show.End(bar, "%s, not restarted", RoleName(st))
	case p.GetNode() == id:
		v.show.End(bar, "%s, restarting", RoleName(st))
	default:
		v.show.End(bar, "%s, waiting for its turn", RoleName(st))
	}
}

// RoleName returns a short name of a node's role.
func RoleName(s *pb.GetStatusResponse) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s.GetRole().String(), "ROLE_")), "_", " ")
}

// PlanState returns the name of a plan's state, for programs.
func PlanState(s pb.PlanState) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(s.String(), "PLAN_STATE_")), "_", "-")
}

// PlanKind returns the name of a plan's kind, for programs.
func PlanKind(k pb.PlanKind) string {
	return strings.ToLower(strings.TrimPrefix(k.String(), "PLAN_KIND_"))
}

// DescribePlan describes a plan in a sentence. name returns the name of a node.
func DescribePlan(p *pb.Plan, name func(id string) string) string {
	label := PlanKind(p.GetKind())
	if p.GetKind() == pb.PlanKind_PLAN_KIND_RESIZE {
		label += " to pages of " + output.Bytes(uint64(p.GetPageSize()))
	}
	node := "a node"
	if p.GetNode() != "" {
		node = "node " + name(p.GetNode())
	}
	s, reason := "", p.GetReason()
	switch p.GetState() {
	case pb.PlanState_PLAN_STATE_WAITING:
		s = "waiting until both nodes are in sync"
	case pb.PlanState_PLAN_STATE_REWRITING:
		s = node + " is rewriting its page file"
	case pb.PlanState_PLAN_STATE_RESTARTING:
		s = node + " is restarting"
	case pb.PlanState_PLAN_STATE_CATCHING_UP:
		s = node + " has rewritten its page file and is catching up"
	case pb.PlanState_PLAN_STATE_SWITCHING:
		s = "switching the active role"
	case pb.PlanState_PLAN_STATE_DONE:
		s = "done on both nodes"
	case pb.PlanState_PLAN_STATE_FAILED:
		s, reason = "FAILED: "+reason, ""
	case pb.PlanState_PLAN_STATE_CANCELLED:
		s, reason = "canceled: "+reason, ""
	default:
		s = PlanState(p.GetState())
	}
	if reason != "" {
		s = reason // describes the state with node names
	}
	if n := p.GetRetries(); n > 0 {
		s += fmt.Sprintf(" (retries: %d)", n)
	}
	return label + ": " + s
}

// Plan is the JSON form of the rolling plan, with node names where they are known.
type Plan struct {
	ID          string    `json:"id"`
	Kind        string    `json:"kind"`
	PageSize    uint32    `json:"page_size"`
	SwitchBack  bool      `json:"switch_back"`
	State       string    `json:"state"`
	Reason      string    `json:"reason,omitempty"`
	FirstActive string    `json:"first_active"`
	Node        string    `json:"node,omitempty"`
	DoneNodes   []string  `json:"done_nodes"`
	Phase       string    `json:"phase,omitempty"`
	DoneBytes   uint64    `json:"done_bytes,omitempty"`
	TotalBytes  uint64    `json:"total_bytes,omitempty"`
	Retries     uint32    `json:"retries"`
	StartedAt   time.Time `json:"started_at"`
	EndedAt     time.Time `json:"ended_at,omitzero"`
}

// NewPlan converts a plan reported by a node. name returns the name of a node by its ID.
func NewPlan(p *pb.Plan, name func(string) string) Plan {
	j := Plan{
		ID: p.GetId(), Kind: PlanKind(p.GetKind()), PageSize: p.GetPageSize(), SwitchBack: p.GetSwitchBack(),
		State:  PlanState(p.GetState()),
		Reason: p.GetReason(), FirstActive: name(p.GetFirstActive()), DoneNodes: []string{},
		Phase:     p.GetProgress().GetPhase(),
		DoneBytes: p.GetProgress().GetDoneBytes(), TotalBytes: p.GetProgress().GetTotalBytes(), Retries: p.GetRetries(),
		StartedAt: p.GetStartedAt().AsTime(),
	}
	if p.GetNode() != "" {
		j.Node = name(p.GetNode())
	}
	for _, n := range p.GetDoneNodes() {
		j.DoneNodes = append(j.DoneNodes, name(n))
	}
	if p.GetEndedAt() != nil {
		j.EndedAt = p.GetEndedAt().AsTime()
	}
	return j
}
