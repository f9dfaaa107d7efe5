// SPDX-License-Identifier: Apache-2.0

package conditions_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

// Each failover state that requires attention becomes a condition.
func TestFromFailover(t *testing.T) {
	a, b := uuid.New(), uuid.New()
	healthy := func() failover.Status {
		return failover.Status{
			Role: failover.RoleActive, Self: failover.NodeInfo{ID: a, Name: "a"}, Coordinator: "etcd",
			CoordinatorReachable: true, Serve: true, Deliver: true,
			Record: &failover.Record{
				Active: a, InSync: []failover.Member{{Node: a}, {Node: b}}, MinInSync: 1,
				Nodes: []failover.NodeInfo{
					{ID: a, Name: "a", Version: "1", Address: "a:1"},
					{ID: b, Name: "b", Version: "1", Address: "b:1"},
				},
			},
		}
	}
	require.Empty(t, conditions.FromFailover(healthy()))
	since := time.Unix(1_700_000_000, 0)
	for want, change := range map[conditions.Kind]func(st *failover.Status){
		conditions.OneCopyOnly:       func(st *failover.Status) { st.Record.InSync = st.Record.InSync[:1] },
		conditions.NotServing:        func(st *failover.Status) { st.Role, st.Reason = failover.RoleBlocked, "why" },
		conditions.RecordRejected:    func(st *failover.Status) { st.Refused = errors.New("why") },
		conditions.CoordinatorLost:   func(st *failover.Status) { st.CoordinatorReachable = false },
		conditions.CoordinatorErrors: func(st *failover.Status) { st.CoordinatorRefuses = "why" },
		conditions.PossibleDataLoss:  func(st *failover.Status) { st.MayHaveLost = true },
		conditions.StoreRolledBack:   func(st *failover.Status) { st.MayHaveLost, st.RolledBack = true, "why" },
		conditions.Superseded:        func(st *failover.Status) { st.Superseded = true },
		conditions.DuplicateProcess:  func(st *failover.Status) { st.Duplicate = &failover.Live{Process: "p"} },
		conditions.HistoriesDiverged: func(st *failover.Status) { st.Ahead = "why" },
		conditions.Paused: func(st *failover.Status) {
			st.Record.Paused = &failover.Pause{
				Since:  since,
				Reason: "why",
			}
		},
		conditions.ForcedUnresolved: func(st *failover.Status) {
			st.Record.Forced = &failover.Forced{
				At:   since,
				Node: a,
			}
		},
		conditions.SwitchoverStuck:   func(st *failover.Status) { st.Record.Switchover = &failover.Switchover{To: b} },
		conditions.DifferentReleases: func(st *failover.Status) { st.Record.Nodes[1].Version = "2" },
		conditions.ForeignNode: func(st *failover.Status) {
			st.Live = []failover.Live{{Node: failover.NodeInfo{ID: uuid.New(), Name: "c", Address: "c:1"}}}
		},
		conditions.VoterMissing: func(st *failover.Status) {
			st.Conditions = []failover.Condition{{Kind: failover.ConditionVoterMissing, Details: "why", Since: since}}
		},
	} {
		st := healthy()
		change(&st)
		got := conditions.FromFailover(st)
		require.Len(t, got, 1, want)
		require.Equal(t, want, got[0].Kind)
		scope := conditions.Find(want).Scope
		require.Equal(t, scope == conditions.OfNode, got[0].Node.ID != "", "the node in the report of %s",
			want)
	}
	st := healthy()
	st.Problem = "why"
	got := conditions.FromFailover(st)
	require.Len(t, got, 1)
	require.Equal(t, conditions.RecordRejected, got[0].Kind, "the pair runs without its record")
	require.Equal(t, "why", got[0].Details)
	st = healthy()
	st.Record.InSync, st.Record.MinInSync = st.Record.InSync[:1], 2
	require.Len(t, conditions.FromFailover(st), 2, "one-copy-only and min-in-sync-not-met")
}

// Each condition name in package failover is a kind.
func TestFailoverConditionsAreKinds(t *testing.T) {
	for _, name := range []string{
		failover.ConditionSuperseded, failover.ConditionDuplicateProcess, failover.ConditionStoreRolledBack,
		failover.ConditionHistoriesDiverged,
		failover.ConditionVoterMissing, failover.ConditionVoterBehind, failover.ConditionVoterRolledBack,
		failover.ConditionVoterWiped,
	} {
		require.NotNil(t, conditions.Find(conditions.Kind(name)), name)
	}
}
