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

// events reads the event log of a node in order: each wait begins after the previous match.
type events struct {
	t  *testing.T
	n  *cluster.Node
	at int
}

// eventsOf returns the events that a node logs after the call.
func eventsOf(t *testing.T, n *cluster.Node) *events {
	t.Helper()
	return &events{t: t, n: n, at: logSize(t, n)}
}

// gone returns the possible codes after a node was killed; the scheduler determines which one occurs.
func gone() []failover.Code {
	return []failover.Code{failover.CodeConnectionRefused, failover.CodeConnectionClosed, failover.CodeSilence}
}

// silent returns the possible codes after a node was frozen or isolated.
func silent() []failover.Code { return []failover.Code{failover.CodeSilence, failover.CodeSlow} }

// wait waits for the next event with the given name for which fits returns true, and checks its code if codes are
// given.
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

func (e *events) role(to failover.Role, codes ...failover.Code) cluster.Event {
	e.t.Helper()
	return e.wait(cluster.EventRole, codes, func(x cluster.Event) bool { return x.Is("to", to.String()) })
}

// dropped waits until the node drops its standby from the in-sync set, and then until it changes to RoleActiveAlone.
func (e *events) dropped(codes ...failover.Code) cluster.Event {
	e.t.Helper()
	found := e.wait(cluster.EventDropped, codes, nil)
	e.role(failover.RoleActiveAlone, failover.CodeStandbyDropped)
	return found
}

// takeovers waits until the node changes to RoleCandidate and then to RoleActivating, each with one of the codes.
func (e *events) takeovers(codes ...failover.Code) cluster.Event {
	e.t.Helper()
	candidate := e.role(failover.RoleCandidate, codes...)
	leads := e.role(failover.RoleActivating, codes...)
	require.Equal(e.t, candidate.Number("term")+1, leads.Number("term"))
	require.GreaterOrEqual(e.t, leads.Number("lsn"), candidate.Number("lsn"))
	return leads
}

func (e *events) condition(kind conditions.Kind) cluster.Event {
	e.t.Helper()
	return e.wait(cluster.EventCondition, nil, func(x cluster.Event) bool { return x.Is("condition", string(kind)) })
}

// never requires that the node changed to none of the roles between the last match and the log position until.
func (e *events) never(until int, roles ...failover.Role) {
	e.t.Helper()
	ctx, cancel := context.WithCancel(e.t.Context())
	cancel() // WaitEvent then checks only the events that are already logged
	for _, role := range roles {
		found, err := e.n.WaitEvent(ctx, e.at, cluster.EventRole,
			func(x cluster.Event) bool { return x.Is("to", role.String()) })
		if err == nil {
			require.Greater(e.t, found.End, until, "node %s: %v", e.n.Name, found.Fields)
		}
	}
}

// activeRoles returns the roles of a node that is active or is becoming active.
func activeRoles() []failover.Role {
	return []failover.Role{
		failover.RoleCandidate, failover.RoleActivating, failover.RoleActive, failover.RoleActiveAlone,
	}
}

// The standby of a killed active becomes a candidate, and then the active of a later term with its complete log. The
// other node follows it after a restart.
func TestFailoverEvents(t *testing.T) {
	t.Parallel() // mostly idle
	p := start(t, cluster.Options{Settings: steady()})
	active, standby := inSync(t, p)
	was, is := eventsOf(t, active), eventsOf(t, standby)
	require.NoError(t, active.Kill())
	leads := is.takeovers(gone()...)
	is.role(failover.RoleActiveAlone, failover.CodeReady)
	require.NoError(t, active.Start())
	was.role(failover.RoleRecovering, failover.CodeStart)
	was.role(failover.RoleCatchingUp, failover.CodeRecord)
	was.role(failover.RoleSyncing, failover.CodeCaughtUp)
	back := was.role(failover.RoleStandby, failover.CodeInSync)
	require.Equal(t, leads.Number("term"), back.Number("term"))
	is.role(failover.RoleActive, failover.CodeStandbyInSync)
}
