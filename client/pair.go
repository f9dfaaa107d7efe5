// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

// pairs contains the highest terms and epochs that the nodes have reported. The nodes may belong to the pairs of two
// sites. Terms are compared only within a pair, and epochs only within a lineage. locator.mu guards the fields.
type pairs struct {
	terms  map[string]uint64 // highest term of an active or blocked node, by pair ID
	epochs map[string]uint64 // highest epoch, by lineage
}

func newPairs() pairs { return pairs{terms: make(map[string]uint64), epochs: make(map[string]uint64)} }

// record records the last reports of the nodes. It removes pairs and lineages that no node belongs to any longer.
func (p *pairs) record(nodes []*node) {
	lineages, ids := make(map[string]bool), make(map[string]bool)
	for _, n := range nodes {
		ids[n.pairID], lineages[n.site.GetLineage()] = true, true
		if n.roleRank() > 0 {
			p.terms[n.pairID] = max(p.terms[n.pairID], n.term)
		}
		if lineage := n.site.GetLineage(); lineage != "" {
			p.epochs[lineage] = max(p.epochs[lineage], n.site.GetEpoch())
		}
	}
	maps.DeleteFunc(p.terms, func(id string, _ uint64) bool { return !ids[id] })
	maps.DeleteFunc(p.epochs, func(lineage string, _ uint64) bool { return !lineages[lineage] })
}

// usable reports whether the node can be the target. A node that another node of the pair has replaced (deposed) is not
// usable. Without AnySite, neither is a node of a pair that the other site has replaced (superseded), nor a node that
// belongs to no lineage although another pair does (outside). mu is held.
func (l *locator) usable(n *node) bool {
	return !l.pairs.deposed(n) && (l.opts.AnySite || !l.pairs.superseded(n) && !outside(n, l.nodes))
}

// deposed reports whether another node of the pair became active in a higher term. The node may not be aware of it.
func (p *pairs) deposed(n *node) bool { return n.term < p.terms[n.pairID] }

// superseded reports whether another site became the primary in a higher epoch. The node may not be aware of it.
func (p *pairs) superseded(n *node) bool { return n.site.GetEpoch() < p.epochs[n.site.GetLineage()] }

// outside reports whether a node belongs to no lineage, but another pair does. The node is then not yet part of a
// replica of that pair, or was reinstalled.
func outside(n *node, nodes []*node) bool {
	return n.site.GetLineage() == "" && slices.ContainsFunc(nodes, func(other *node) bool {
		return other.site.GetLineage() != "" && (other.pairID != n.pairID || n.pairID == "")
	})
}

// better reports whether n is a better target than best. mu is held.
func (l *locator) better(n, best *node) bool {
	switch {
	case n.pairID != best.pairID:
		// The pairs are unrelated, or both are primaries in one epoch. The client stays with the current pair.
		return l.target != nil && l.target.node.pairID == n.pairID
	case n.term != best.term:
		return n.term > best.term
	case n.rank() != best.rank():
		return n.rank() > best.rank()
	default:
		// Both may be the same node under two addresses. The current target is retained, so that its pending calls
		// continue.
		return l.target != nil && l.target.node == n
	}
}

// isReplica reports whether the pair of the node accepts no requests from clients because of its site role.
func (n *node) isReplica() bool {
	r := n.site.GetRole()
	return r == pb.SiteRole_SITE_ROLE_REPLICA || r == pb.SiteRole_SITE_ROLE_STOPPED
}

// replicaError returns an error that describes a node that does not serve because of the role of its site.
func (n *node) replicaError() *Error {
	role := "a replica"
	if n.site.GetRole() == pb.SiteRole_SITE_ROLE_STOPPED {
		role = "stopped, a switch is in progress"
	}
	s := fmt.Sprintf("%s, site %s is %s", roleName(n.role), n.site.GetName(), role)
	if remote := n.site.GetRemoteAddresses(); len(remote) > 0 {
		s += "; other site: " + strings.Join(remote, ", ")
	}
	return &Error{
		Address: n.address, Code: codes.FailedPrecondition, Message: s,
		Reason: reason.Name(pb.ErrorReason_ERROR_REASON_REPLICA), reason: pb.ErrorReason_ERROR_REASON_REPLICA,
	}
}

// supersededBy returns a description of the epoch that supersedes the site of a node; an empty string if none does.
// mu is held.
func (l *locator) supersededBy(n *node) string {
	if epoch := l.pairs.epochs[n.site.GetLineage()]; epoch > n.site.GetEpoch() {
		return fmt.Sprintf(", site %s is superseded: its epoch is %d, and the other site has epoch %d",
			n.site.GetName(), n.site.GetEpoch(), epoch)
	}
	return ""
}

func roleName(r pb.Role) string { return strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_")) }
