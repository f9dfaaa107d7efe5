// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Plan is the pair's rolling plan, with node names where they are known.
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
