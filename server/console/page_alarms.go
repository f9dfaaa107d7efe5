// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"context"
	"slices"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// runbook is the URL of the page that has a section for each kind of condition.
const runbook = "https://github.com/lockstep-mq/lockstep/blob/main/docs/how-to/respond-to-conditions.md#"

func alarmsPage() Page {
	return Page{
		Path: "/alarms", Title: "Alarms", Key: "a", Right: "any", Template: "alarms", Live: true, Load: loadAlarms,
	}
}

type alarmsView struct {
	Conditions  []*pb.Condition
	Unreachable []*nodeView // nodes that do not respond
}

func loadAlarms(ctx context.Context, v *View) (any, error) {
	nodes, err := v.nodes(ctx)
	if err != nil {
		return nil, err
	}
	d := &alarmsView{Conditions: mergeConditions(nodes)}
	for _, n := range nodes {
		if n.Status == nil {
			d.Unreachable = append(d.Unreachable, n)
		}
	}
	return d, nil
}

// mergeConditions returns the conditions of all nodes without duplicates, most severe first.
func mergeConditions(nodes []*nodeView) []*pb.Condition {
	type key struct{ kind, node string }
	known := make(map[key]bool)
	var all []*pb.Condition
	for _, n := range nodes {
		for _, c := range n.Status.GetConditions() {
			k := key{c.GetKind(), c.GetNodeId()}
			if !known[k] {
				known[k] = true
				all = append(all, c)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b *pb.Condition) int {
		return cmp.Or(cmp.Compare(b.GetSeverity(), a.GetSeverity()), cmp.Compare(a.GetKind(), b.GetKind()),
			cmp.Compare(a.GetNodeId(), b.GetNodeId()))
	})
	return all
}
