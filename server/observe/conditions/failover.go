// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/failover"
)

// FromFailover returns the conditions that follow from the failover status of a node of a pair.
func FromFailover(st failover.Status) []Report {
	self := Node{ID: st.Self.ID.String(), Name: st.Self.Name}
	var out []Report
	node := func(on bool, k Kind, details string) {
		if on {
			out = append(out, Report{Kind: k, Node: self, Details: details})
		}
	}
	node(waits(st.Role), NotServing, st.Role.String()+": "+st.Reason)
	node(st.Refused != nil, RecordRejected, text(st.Refused))
	node(!st.CoordinatorReachable, CoordinatorLost, "the coordinator is "+st.Coordinator)
	node(st.CoordinatorRefuses != "", CoordinatorErrors, st.CoordinatorRefuses)
	node(st.MayHaveLost && st.RolledBack == "", PossibleDataLoss, "")
	node(st.RolledBack != "", StoreRolledBack, st.RolledBack)
	node(st.Superseded, Superseded, st.Reason)
	if t := st.Duplicate; t != nil {
		node(true, DuplicateProcess, "the other process is at "+cmp.Or(t.Node.Address, "an unknown address"))
	}
	if st.Ahead != "" {
		out = append(out, Report{Kind: HistoriesDiverged, Details: st.Ahead})
	}
	for _, n := range st.Conditions {
		r := Report{Kind: Kind(n.Kind), Details: n.Details, Since: n.Since}
		if d := Find(r.Kind); d != nil && d.Scope == OfNode {
			r.Node = self
		}
		out = append(out, r)
	}
	if st.Record != nil {
		out = append(out, fromRecord(&st)...)
	}
	return out
}

// InRecord reports whether a condition follows from the cluster record alone, so that each node with the record detects
// it without the other one.
func InRecord(k Kind) bool {
	switch k {
	case OneCopyOnly, MinInSyncNotMet, Paused, ForcedUnresolved, SwitchoverStuck:
		return true
	default:
		return false
	}
}

// fromRecord returns the conditions that follow from the cluster record, of which InRecord needs nothing else.
func fromRecord(st *failover.Status) []Report {
	r := st.Record
	var out []Report
	if len(r.InSync) == 1 {
		out = append(out, Report{Kind: OneCopyOnly, Details: "only in-sync node: " + nameOf(st, r.InSync[0].Node)})
		if r.MinInSync > 1 {
			out = append(out, Report{Kind: MinInSyncNotMet})
		}
	}
	if p := r.Paused; p != nil {
		details := ""
		if p.Reason != "" {
			details = "reason: " + p.Reason
		}
		out = append(out, Report{Kind: Paused, Details: details, Since: p.Since})
	}
	if f := r.Forced; f != nil && !f.Settled {
		out = append(out, Report{Kind: ForcedUnresolved, Since: f.At, Details: fmt.Sprintf(
			"%s was activated by %s; messages that the other node acknowledged after LSN %d may be lost",
			nameOf(st, f.Node), f.By, f.After,
		)})
	}
	if r.Switchover != nil {
		out = append(out, Report{Kind: SwitchoverStuck, Details: "to node " + nameOf(st, r.Switchover.To)})
	}
	if n, ok := st.Third(); ok {
		out = append(out, Report{
			Kind: ForeignNode,
			Details: fmt.Sprintf("node %s at %s tries to join, but the pair is complete",
				cmp.Or(n.Name, n.ID.String()), cmp.Or(n.Address, "an unknown address")),
		})
	}
	if a, b, differ := releases(st); differ {
		out = append(out, Report{Kind: DifferentReleases, Details: a + " and " + b})
	}
	return out
}

func waits(r failover.Role) bool {
	switch r {
	case failover.RoleActive, failover.RoleActiveAlone, failover.RoleStandby, failover.RoleSyncing,
		failover.RoleCatchingUp:
		return false
	default:
		return true
	}
}

// releases returns the releases of the two nodes, if they differ. The status reported by a node takes precedence over
// the record.
func releases(st *failover.Status) (a, b string, differ bool) {
	var seen []string
	for _, n := range st.Record.Nodes {
		if now, ok := st.Node(n.ID); ok {
			n = now
		}
		seen = append(seen, n.Version)
	}
	if len(seen) != 2 || seen[0] == seen[1] {
		return "", "", false
	}
	for i, v := range seen {
		if v == "" {
			seen[i] = "an older release"
		}
	}
	slices.Sort(seen)
	return seen[0], seen[1], true
}

func nameOf(st *failover.Status, id uuid.UUID) string {
	if n, ok := st.Node(id); ok && n.Name != "" {
		return n.Name
	}
	return id.String()
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
