// SPDX-License-Identifier: Apache-2.0

package pairstatus

import (
	"cmp"
	"slices"
	"strings"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Condition is a current condition of a node or of the pair.
type Condition struct {
	Condition string    `json:"condition"`
	Severity  string    `json:"severity"`
	Node      string    `json:"node,omitempty"` // affected node; empty for the pair
	Since     time.Time `json:"since"`
	Details   string    `json:"details,omitempty"`
	Meaning   string    `json:"means"`
	Do        string    `json:"do"`

	severityRank pb.Severity
}

// reportedConditions returns the conditions that a node reports. For a release without conditions, it converts the
// alarms.
func reportedConditions(r *pb.GetStatusResponse) []*pb.Condition {
	if r.GetNow() != nil {
		return r.GetConditions()
	}
	out := make([]*pb.Condition, 0, len(r.GetAlarms()))
	for _, a := range r.GetAlarms() {
		out = append(out, &pb.Condition{
			Kind: a.GetKind(), Severity: pb.Severity_SEVERITY_CRITICAL, Since: a.GetSince(), Cause: a.GetMessage(),
			NodeId: r.GetNode().GetNodeId(), NodeName: r.GetNode().GetName(), ReportedBy: r.GetNode().GetNodeId(),
		})
	}
	return out
}

// addConditions adds each condition once. It adds a condition that a node reports about another node only if the
// other node does not respond. It adds conditions of the pair only from nodes that have the newest cluster record.
func (s *Status) addConditions(pairs []*pb.PairStatus) {
	s.Conditions = []Condition{}
	newest := uint64(0)
	for _, p := range pairs {
		newest = max(newest, p.GetConfig())
	}
	type key struct{ kind, node string }
	seen := make(map[key]bool)
	for i := range s.Nodes {
		for _, c := range s.Nodes[i].conditions {
			k := key{c.GetKind(), c.GetNodeId()}
			stale := c.GetNodeId() == "" && pairs[i].GetConfig() < newest ||
				c.GetNodeId() != "" && c.GetNodeId() != s.Nodes[i].NodeID && s.answers(c.GetNodeId())
			if stale || seen[k] {
				continue
			}
			seen[k] = true
			s.Conditions = append(s.Conditions, newCondition(c))
		}
	}
	slices.SortStableFunc(s.Conditions, func(x, y Condition) int {
		return cmp.Or(cmp.Compare(y.severityRank, x.severityRank), x.Since.Compare(y.Since), cmp.Compare(x.Condition,
			y.Condition))
	})
}

func (s *Status) answers(id string) bool {
	return slices.ContainsFunc(s.Nodes, func(n Node) bool { return n.NodeID == id && n.Error == "" })
}

func newCondition(c *pb.Condition) Condition {
	return Condition{
		Condition: c.GetKind(), Severity: strings.ToLower(strings.TrimPrefix(c.GetSeverity().String(), "SEVERITY_")),
		Node: cmp.Or(c.GetNodeName(), c.GetNodeId()), Since: c.GetSince().AsTime(), Details: c.GetDetails(),
		Meaning: c.GetCause(), Do: c.GetAction(), severityRank: c.GetSeverity(),
	}
}
