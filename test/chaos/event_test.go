// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// events reads the event log of a node in order: each wait begins after the event before it.
type events struct {
	t  *testing.T
	n  *cluster.Node
	at int
}

// eventsOf returns the events that a node logs from now on.
func eventsOf(t *testing.T, n *cluster.Node) *events {
	t.Helper()
	return &events{t: t, n: n, at: logged(t, n)}
}

// gone are the codes of a killed node. Which of them is first depends on the scheduler.
func gone() []failover.Code {
	return []failover.Code{failover.CodeConnectionRefused, failover.CodeConnectionClosed, failover.CodeSilence}
}

// silent are the codes of a node that is frozen or cut off.
func silent() []failover.Code { return []failover.Code{failover.CodeSilence, failover.CodeSlow} }

// wait waits for the next event of a name that fits, and checks its code if there are codes to choose from.
func (e *events) wait(name string, codes []failover.Code, fits func(cluster.Event) bool) cluster.Event {
	e.t.Helper()
	found, err := e.n.WaitEvent(limited(e.t), e.at, name, fits)
	require.NoError(e.t, err)
	if len(codes) > 0 {
		require.Contains(e.t, codes, failover.Code(fmt.Sprint(found.Fields["code"])), "%s: %v", name, found.Fields)
	}
	e.at = found.End
	return found
}

// role waits for the next change to a role.
func (e *events) role(to failover.Role, codes ...failover.Code) cluster.Event {
	e.t.Helper()
	return e.wait(cluster.EventRole, codes, func(x cluster.Event) bool { return x.Is("to", to.String()) })
}

// dropped waits for the next standby that leaves the in-sync set, and for the role that follows from it.
func (e *events) dropped(codes ...failover.Code) cluster.Event {
	e.t.Helper()
	found := e.wait(cluster.EventDropped, codes, nil)
	e.role(failover.RoleActiveAlone, failover.CodeStandbyDropped)
	return found
}

// tookOver waits until the node was a candidate for one of the codes, and then the active.
func (e *events) tookOver(codes ...failover.Code) cluster.Event {
	e.t.Helper()
	candidate := e.role(failover.RoleCandidate, codes...)
	leads := e.role(failover.RoleActivating, codes...)
	require.Equal(e.t, candidate.Number("term")+1, leads.Number("term"))
	require.GreaterOrEqual(e.t, leads.Number("lsn"), candidate.Number("lsn"))
	return leads
}

// condition waits until the node reports a condition.
func (e *events) condition(kind conditions.Kind) cluster.Event {
	e.t.Helper()
	return e.wait(cluster.EventCondition, nil, func(x cluster.Event) bool { return x.Is("condition", string(kind)) })
}

// never requires that the node changed to none of the roles between where the events are and a position of the log.
func (e *events) never(until int, roles ...failover.Role) {
	e.t.Helper()
	ctx, cancel := context.WithCancel(e.t.Context())
	cancel() // events so far
	for _, role := range roles {
		found, err := e.n.WaitEvent(ctx, e.at, cluster.EventRole,
			func(x cluster.Event) bool { return x.Is("to", role.String()) })
		if err == nil {
			require.Greater(e.t, found.End, until, "node %s: %v", e.n.Name, found.Fields)
		}
	}
}

// activeRoles are those of a node that holds the active role, or is about to take it.
func activeRoles() []failover.Role {
	return []failover.Role{
		failover.RoleCandidate, failover.RoleActivating, failover.RoleActive, failover.RoleActiveAlone,
	}
}

// TestFailoverEvents: the standby of a killed active becomes a candidate, and then the active of a later term, with
// all of its log; and the other one follows it when it is back.
func TestFailoverEvents(t *testing.T) {
	t.Parallel() // it mostly waits
	p := start(t, cluster.Options{Settings: steady()})
	active, standby := inSync(t, p)
	was, is := eventsOf(t, active), eventsOf(t, standby)
	require.NoError(t, active.Kill())
	leads := is.tookOver(gone()...)
	is.role(failover.RoleActiveAlone, failover.CodeReady)
	require.NoError(t, active.Start())
	was.role(failover.RoleRecovering, failover.CodeStart)
	was.role(failover.RoleCatchingUp, failover.CodeRecord)
	was.role(failover.RoleSyncing, failover.CodeCaughtUp)
	back := was.role(failover.RoleStandby, failover.CodeInSync)
	require.Equal(t, leads.Number("term"), back.Number("term"))
	is.role(failover.RoleActive, failover.CodeStandbyInSync)
}
