package main

import (
	"cmp"
	"slices"
	"strings"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// conditionJSON is something that is the case now and that an operator may have to know.
type conditionJSON struct {
	Condition string    `json:"condition"`
	Severity  string    `json:"severity"`
	Node      string    `json:"node,omitempty"` // that it is about; empty for the pair
	Since     time.Time `json:"since"`
	Details   string    `json:"details,omitempty"`
	Means     string    `json:"means"`
	Do        string    `json:"do"`

	rank pb.Severity
}

// toldConditions are those that a node told. One of a release that knows none has alarms.
func toldConditions(r *pb.GetStatusResponse) []*pb.Condition {
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

// addConditions puts together what the nodes told, each condition once. What one node says of another one counts only
// if that one does not answer, and of the pair only what those say that know its newest record.
func (s *statusJSON) addConditions(pairs []*pb.PairStatus) {
	s.Conditions = []conditionJSON{}
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
			s.Conditions = append(s.Conditions, toConditionJSON(c))
		}
	}
	slices.SortStableFunc(s.Conditions, func(x, y conditionJSON) int {
		return cmp.Or(cmp.Compare(y.rank, x.rank), x.Since.Compare(y.Since), cmp.Compare(x.Condition, y.Condition))
	})
}

// answers tells whether the node of an id has answered.
func (s *statusJSON) answers(id string) bool {
	return slices.ContainsFunc(s.Nodes, func(n nodeJSON) bool { return n.NodeID == id && n.Error == "" })
}

func toConditionJSON(c *pb.Condition) conditionJSON {
	return conditionJSON{
		Condition: c.GetKind(), Severity: strings.ToLower(strings.TrimPrefix(c.GetSeverity().String(), "SEVERITY_")),
		Node: cmp.Or(c.GetNodeName(), c.GetNodeId()), Since: c.GetSince().AsTime(), Details: c.GetDetails(),
		Means: c.GetCause(), Do: c.GetAction(), rank: c.GetSeverity(),
	}
}

// printConditions tells people what is the case, what it means and what to do.
func (a *app) printConditions(all []conditionJSON) error {
	for i := range all {
		c := &all[i]
		text := strings.ToUpper(c.Severity) + " " + c.Condition
		if c.Node != "" {
			text += " on " + c.Node
		}
		text += " since " + localTime(c.Since)
		if c.Details != "" {
			text += ": " + c.Details
		}
		for _, line := range []string{c.Means, c.Do} {
			if line != "" {
				text += "\n  " + line
			}
		}
		if err := a.print.Sentence("%s", text); err != nil {
			return err
		}
	}
	return nil
}
