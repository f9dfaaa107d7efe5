// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/failover"
)

// FromFailover returns the conditions derived from the failover status of a node that belongs to a pair.
func FromFailover(st failover.Status) []Report {
	f := findings{self: Node{ID: st.Self.ID.String(), Name: st.Self.Name}}
	f.node(waits(st.Role), NotServing, "%s: %s", st.Role, st.Reason)
	f.node(st.Refused != nil, RecordRejected, "%v", st.Refused)
	f.node(st.Refused == nil && st.Problem != "", RecordRejected, "%s", st.Problem)
	f.node(!st.CoordinatorReachable, CoordinatorLost, "the coordinator is %s", st.Coordinator)
	f.node(st.CoordinatorRefuses != "", CoordinatorErrors, "%s", st.CoordinatorRefuses)
	f.node(st.MayHaveLost && st.RolledBack == "", PossibleDataLoss, "")
	f.node(st.RolledBack != "", StoreRolledBack, "%s", st.RolledBack)
	f.node(st.Superseded, Superseded, "%s", st.Reason)
	if t := st.Duplicate; t != nil {
		f.node(true, DuplicateProcess, "the other process is at %s", cmp.Or(t.Node.Address, "an unknown address"))
	}
	f.pair(st.Ahead != "", HistoriesDiverged, "%s", st.Ahead)
	for _, n := range st.Conditions {
		r := Report{Kind: Kind(n.Kind), Details: n.Details, Since: n.Since}
		if d := Find(r.Kind); d != nil && d.Scope == OfNode {
			r.Node = f.self
		}
		f.all = append(f.all, r)
	}
	if st.Record != nil {
		f.record(&st)
	}
	return f.all
}

// InRecord reports whether a kind of condition follows from the cluster record alone. Each node that has the record
// detects such a condition without the other node.
func InRecord(k Kind) bool {
	switch k {
	case OneCopyOnly, MinInSyncNotMet, Paused, ForcedUnresolved, SwitchoverStuck:
		return true
	default:
		return false
	}
}

// record adds the conditions that follow from the cluster record. The kinds for which InRecord returns true need no
// other data.
func (f *findings) record(st *failover.Status) {
	r := st.Record
	if len(r.InSync) == 1 {
		f.pair(true, OneCopyOnly, "only in-sync node: %s", nameOf(st, r.InSync[0].Node))
		f.pair(r.MinInSync > 1, MinInSyncNotMet, "")
	}
	if p := r.Paused; p != nil {
		details := ""
		if p.Reason != "" {
			details = "reason: " + p.Reason
		}
		f.all = append(f.all, Report{Kind: Paused, Details: details, Since: p.Since})
	}
	if forced := r.Forced; forced != nil && !forced.Settled {
		f.all = append(f.all, Report{Kind: ForcedUnresolved, Since: forced.At, Details: fmt.Sprintf(
			"%s was activated by %s; messages that the other node acknowledged after LSN %d may be lost",
			nameOf(st, forced.Node), forced.By, forced.After,
		)})
	}
	if r.Switchover != nil {
		f.pair(true, SwitchoverStuck, "to node %s", nameOf(st, r.Switchover.To))
	}
	if n, ok := st.Third(); ok {
		f.pair(true, ForeignNode, "node %s at %s tries to join, but the pair is complete",
			cmp.Or(n.Name, n.ID.String()), cmp.Or(n.Address, "an unknown address"))
	}
	if a, b, differ := releases(st); differ {
		f.pair(true, DifferentReleases, "%s and %s", a, b)
	}
}

// waits reports whether a node in this role neither serves clients nor follows an active node.
func waits(r failover.Role) bool {
	return !slices.Contains([]failover.Role{
		failover.RoleActive, failover.RoleActiveAlone, failover.RoleStandby, failover.RoleSyncing, failover.RoleCatchingUp,
	}, r)
}

// releases returns the releases of the two nodes. differ is false if they are equal, or the cluster record does not
// contain two nodes. The release that a node announces takes precedence over the release in the cluster record.
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
