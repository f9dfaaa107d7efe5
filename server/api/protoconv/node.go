// SPDX-License-Identifier: Apache-2.0

package protoconv

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
)

const retryAfter = 50 * time.Millisecond

// NotActive returns an error that redirects clients to next, or, if next is the zero value, to the active of the
// cluster record.
func NotActive(st *failover.Status, next failover.NodeInfo) *apierror.NotActiveError {
	if active, ok := st.ActiveNode(); ok && next.ID == uuid.Nil {
		next = active
	}
	out := &apierror.NotActiveError{Role: st.Role.String(), Reason: st.Reason, RetryAfter: retryAfter}
	if next.ID != uuid.Nil && next.ID != st.Self.ID {
		out.ActiveAddress, out.ActiveNode = next.Address, next.ID.String()
	}
	return out
}

// NodeCalled returns the node of the pair with a name or UUID. Errors wrap ErrInvalid and list the nodes.
func NodeCalled(st *failover.Status, called string) (uuid.UUID, error) {
	nodes := slices.Clone(st.Record.Nodes)
	for _, l := range st.Live {
		if !slices.ContainsFunc(nodes, func(n failover.NodeInfo) bool { return n.ID == l.Node.ID }) {
			nodes = append(nodes, l.Node)
		}
	}
	var found []uuid.UUID
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		if n.ID.String() == called {
			return n.ID, nil
		}
		if n.Name == called {
			found = append(found, n.ID)
		}
		names = append(names, fmt.Sprintf("%s (%s)", n.Name, n.ID))
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return uuid.Nil, fmt.Errorf("%w: no node named %q; nodes are %s", apierror.ErrInvalid, called,
			strings.Join(names, ", "))
	default:
		return uuid.Nil, fmt.Errorf("%w: %d nodes are named %q: use the node UUID; nodes are %s", apierror.ErrInvalid,
			len(found), called,
			strings.Join(names, ", "))
	}
}
