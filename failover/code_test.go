// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// Each role change, and each removal of the standby from in_sync, has a code for its cause.
func TestRoleChangeCodes(t *testing.T) {
	b := testNodes[1].ID
	lost := func(c LostCause) StandbyLost { return StandbyLost{Node: b, Cause: c} }
	record := func(rec Record, config, term uint64) Record {
		rec.Config, rec.Term, rec.OpID = config, term, "b/1"
		return rec
	}
	alone := func(t *testing.T) *rig {
		t.Helper()
		r := newRig(t, Settings{})
		r.start(usedIdentity(), recordWith(0, 0), 0, 1)
		r.won()
		r.report(ActiveReady{})
		return r
	}
	for _, tt := range []struct {
		name string
		from func(t *testing.T) *rig
		do   func(r *rig)
		want []string
	}{
		{"new pair", func(t *testing.T) *rig { t.Helper(); return newRig(t, Settings{}) }, func(r *rig) {
			r.step(Started{Identity: Identity{Node: testNodes[0].ID, Store: testStores[0], Incarnation: 1}})
			r.observe(true)
			r.step(Loaded{Err: ErrNoRecord})
			r.won()
			r.report(ActiveReady{})
		}, []string{"ACTIVATING new-pair", "ACTIVE_ALONE ready"}},
		{"restart of the active", func(t *testing.T) *rig { t.Helper(); return newRig(t, Settings{}) }, func(r *rig) {
			r.start(usedIdentity(), recordWith(0, 0, 1), 0, 1)
			r.won()
			r.report(ActiveReady{})
			r.report(StandbyConnected{Member: memberOf(1)})
		}, []string{"CANDIDATE restart", "ACTIVATING restart", "BLOCKED no-connection", "ACTIVE unblocked"}},
		{"the standby does not connect", func(t *testing.T) *rig { t.Helper(); return newRig(t, Settings{}) }, func(r *rig) {
			r.start(usedIdentity(), recordWith(0, 0, 1), 0, 1)
			r.won()
			r.report(ActiveReady{})
			r.after(2 * time.Second)
			r.won()
		}, []string{
			"CANDIDATE restart", "ACTIVATING restart", "BLOCKED no-connection", "dropped no-connection",
			"ACTIVE_ALONE standby-dropped",
		}},
		{"silent active", standbyOf, func(r *rig) {
			r.report(FollowerLost{Cause: LostSilence})
			r.won()
			r.report(ActiveReady{})
		}, []string{"CANDIDATE silence", "ACTIVATING silence", "ACTIVE_ALONE ready"}},
		{"killed active", standbyOf, func(r *rig) {
			r.report(FollowerLost{Cause: LostRefused})
		}, []string{"CANDIDATE connection-refused"}},
		{"unreachable active", standbyOf, func(r *rig) {
			r.report(FollowerLost{Cause: LostReset})
			r.after(2 * time.Second)
		}, []string{"CANDIDATE connection-closed"}},
		{"the active leaves the in-sync set", standbyOf, func(r *rig) {
			r.seeRecord(record(recordWith(1, 0), 6, 2), 101)
		}, []string{"CANDIDATE active-left"}},
		{"takeover with an unknown outcome", standbyOf, func(r *rig) {
			next := effect[SwapRecord](r.t, r.report(FollowerLost{Cause: LostSilence})).Next
			r.step(Swapped{OpID: r.s.swapping, Err: ErrUnknownOutcome})
			r.step(Loaded{Record: next, Revision: 101})
		}, []string{"CANDIDATE silence", "ACTIVATING silence"}},
		{"the takeover's swap fails, then a switchover", standbyOf, func(r *rig) {
			r.report(FollowerLost{Cause: LostSilence})
			r.seeRecord(record(recordWith(1, 0, 1), 6, 2), 101)
			r.seeRecord(record(recordWith(0, 0, 1), 7, 3), 102)
		}, []string{"CANDIDATE silence", "STANDBY in-sync", "ACTIVATING switchover"}},
		{"switchover", standbyOf, func(r *rig) {
			r.seeRecord(record(recordWith(0, 0, 1), 6, 3), 101)
		}, []string{"ACTIVATING switchover"}},
		{"records are missing on the active", standbyOf, func(r *rig) {
			r.seeRecord(record(recordWith(0, 0), 6, 3), 101)
		}, []string{"ACTIVATING longer-log"}},
		{"dropped and added again", standbyOf, func(r *rig) {
			r.report(FollowerRequired{})
			r.seeRecord(record(recordWith(1, 1), 6, 2), 101)
			r.report(FollowerLost{Cause: LostSlow})
			r.report(FollowerConnected{Config: 6, Term: 2})
			r.report(FollowerRequired{})
			r.seeRecord(record(recordWith(1, 0, 1), 7, 2), 102)
		}, []string{
			"SYNCING dropped", "CATCHING_UP slow", "SYNCING caught-up", "STANDBY in-sync",
		}},
		{"rolled back", standbyOf, func(r *rig) {
			r.report(FollowerIncomplete{Config: 5, Common: 3, Committed: 9})
		}, []string{"RECOVERING store-rolled-back"}},
		{"forced", func(t *testing.T) *rig { t.Helper(); return leftStandby(t, Settings{}) }, func(r *rig) {
			r.step(forceRequest(r))
			r.won()
		}, []string{"CATCHING_UP record", "CANDIDATE forced", "ACTIVATING forced"}},
		{"adopted", func(t *testing.T) *rig { t.Helper(); return waiting(t, usedIdentity()) }, func(r *rig) {
			swap := effect[SwapRecord](r.t, r.step(AdoptRequested{ID: "x"}))
			r.step(Swapped{OpID: swap.Next.OpID, Revision: 1})
		}, []string{"ACTIVATING adopted"}},
		{"silent standby", activeOf, func(r *rig) {
			r.report(lost(LostSilence))
			r.won()
		}, []string{"BLOCKED silence", "dropped silence", "ACTIVE_ALONE standby-dropped"}},
		{"the standby reconnects in time", activeOf, func(r *rig) {
			r.observe(false, 0, 1)
			r.report(lost(LostReset))
			r.report(StandbyConnected{Member: memberOf(1)})
		}, []string{"BLOCKED connection-closed", "ACTIVE unblocked"}},
		{"the standby leaves the in-sync set", activeOf, func(r *rig) {
			r.seeRecord(record(recordWith(0, 0), 7, 3), 200)
		}, []string{"dropped standby-left", "ACTIVE_ALONE standby-dropped"}},
		{"min-in-sync", func(t *testing.T) *rig {
			t.Helper()
			return fresh(activePair(t, Settings{MinInSync: 2}))
		}, func(r *rig) {
			r.report(lost(LostSlow))
			r.won()
		}, []string{"BLOCKED slow", "dropped slow"}},
		{"unknown outcome", alone, func(r *rig) {
			fresh(r).report(StandbyConnected{Member: memberOf(1)})
			need := effect[ConfigureActive](r.t, r.report(StandbyCaughtUp{Member: memberOf(1)})).Config.Requirement
			next := effect[SwapRecord](r.t, r.report(StandbySynced{Member: memberOf(1), Requirement: need})).Next
			r.step(Swapped{OpID: r.s.swapping, Err: ErrUnknownOutcome})
			r.step(Loaded{Record: next, Revision: 200})
		}, []string{"BLOCKED unknown-outcome", "ACTIVE standby-in-sync"}},
		{"histories differ", alone, func(r *rig) {
			fresh(r).report(StandbyAhead{Member: memberOf(1), End: lsn.Position{Term: 2, LSN: 30}, Committed: 30})
		}, []string{"BLOCKED histories-differ"}},
		{"replaced", activeOf, func(r *rig) {
			r.seeRecord(record(recordWith(1, 1), 7, 4), 200)
			r.report(FollowerConnected{Config: 7, Term: 4})
		}, []string{"FENCED replaced", "CATCHING_UP record"}},
		{"replaced by force", activeOf, func(r *rig) {
			forced := record(recordWith(1, 1), 7, 4)
			forced.Forced = &Forced{By: "ann", Node: b, Term: 4, After: 7}
			r.seeRecord(forced, 200)
		}, []string{"FENCED forced"}},
		{"handed over", activeOf, func(r *rig) {
			drain := effect[BeginDrain](r.t, r.step(SwitchoverRequested{ID: "x"}))
			r.step(DrainEnded{Drain: drain.Drain})
			r.won()
			r.report(FollowerConnected{Config: r.s.rec.Config, Term: r.s.rec.Term})
		}, []string{"FENCED switchover", "STANDBY in-sync"}},
		{"the standby has a longer log", activeOf, func(r *rig) {
			r.report(lost(LostReset))
			r.step(Swapped{OpID: r.s.swapping, Err: ErrConflict})
			r.report(StandbyAhead{Member: memberOf(1), End: lsn.Position{Term: 2, LSN: 30}, Committed: 30})
			r.step(Loaded{Record: r.s.rec, Revision: r.s.rev})
			r.won()
		}, []string{"BLOCKED connection-closed", "FENCED longer-log"}},
		{"resumed from an old memory snapshot", alone, func(r *rig) {
			term := r.s.act.term
			fresh(r).step(MarkWritten{Before: Mark{Pair: testPair, By: term, Term: term, LSN: 1000}})
		}, []string{"RECOVERING superseded"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := tt.from(t)
			tt.do(r)
			require.Equal(t, tt.want, r.changes)
		})
	}
}

// fresh discards the changes recorded during test setup.
func fresh(r *rig) *rig {
	r.changes = nil
	return r
}

func activeOf(t *testing.T) *rig {
	t.Helper()
	return fresh(activePair(t, Settings{}))
}

func standbyOf(t *testing.T) *rig {
	t.Helper()
	return fresh(standbyPair(t, Settings{}))
}

// The table in docs/explanation/failover.md lists exactly the defined codes.
func TestCodesAreDocumented(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "code.go", nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	var codes []string
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && v.Type != nil {
			code, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			codes = append(codes, code)
		}
		return true
	})
	require.NotEmpty(t, codes)
	page, err := os.ReadFile("../docs/explanation/failover.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(page), "| Code |")
	require.True(t, ok)
	var documented []string
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "|") && len(documented) > 0 {
			break
		}
		if code, ok := strings.CutPrefix(line, "| `"); ok {
			code, _, _ = strings.Cut(code, "`")
			documented = append(documented, code)
		}
	}
	require.ElementsMatch(t, codes, documented)
}
