// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// Earlier process generations of the stores of a and b.
var (
	runBefore = uuid.MustParse("a0a0a0a0-0000-0000-0000-000000000000")
	runTried  = uuid.MustParse("a1a1a1a1-0000-0000-0000-000000000000")
	runOther  = uuid.MustParse("cccccccc-0000-0000-0000-000000000000")
	runOfB    = uuid.MustParse("b0b0b0b0-0000-0000-0000-000000000000")
)

// newRunRig returns a rig of two nodes of a release that supports generations.
func newRunRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, Settings{})
	r.features = KnownFeatures()
	return r
}

// knowing returns the record with the features of this build on its nodes.
func knowing(rec Record) Record {
	rec = rec.Clone()
	for i := range rec.Nodes {
		rec.Nodes[i].Features = KnownFeatures()
	}
	return rec
}

// inRuns returns the record with generations in the entries of a and b.
func inRuns(rec Record, a, b uuid.UUID) Record {
	rec = knowing(rec)
	for i := range rec.InSync {
		rec.InSync[i].Generation = map[uuid.UUID]uuid.UUID{testNodes[0].ID: a, testNodes[1].ID: b}[rec.InSync[i].Node]
	}
	return rec
}

// ranIdentity returns usedIdentity with generations.
func ranIdentity(run, claimed uuid.UUID) Identity {
	id := usedIdentity()
	id.Generation, id.ClaimedGeneration = run, claimed
	return id
}

// next returns a record of another writer that follows rec.
func next(rec Record, op string) Record {
	rec = rec.Clone()
	rec.Config++
	rec.OpID = op
	return rec
}

// Each start claims a generation before it participates, adds it to the record, and then persists the confirmation.
func TestGenerationRenewed(t *testing.T) {
	for _, c := range []struct {
		name         string
		run, claimed uuid.UUID // on disk
		named        uuid.UUID // in the record
	}{
		{"listed", runBefore, uuid.Nil, runBefore},
		{"stopped before it saw its listed generation", runBefore, runTried, runTried},
		{"stopped before its generation was listed", runBefore, runTried, runBefore},
		{"written by a release without generations", uuid.Nil, uuid.Nil, uuid.Nil},
	} {
		t.Run(c.name+", active", func(t *testing.T) {
			r := newRunRig(t)
			effects := r.start(ranIdentity(c.run, c.claimed), inRuns(recordWith(0, 0), c.named, uuid.Nil), 0)
			claim := effect[ClaimGeneration](t, effects)
			require.Equal(t, generationOf("p"), claim.Claimed)
			if c.named != uuid.Nil {
				require.Equal(t, c.named, claim.Listed, "the generation in the record is still on the disk")
			}
			swap := effect[SwapRecord](t, effects)
			require.Equal(t, generationOf("p"), swap.Next.InSync[0].Generation, "the record lists this generation")
			effects = r.won()
			require.Equal(t, ConfirmGeneration{Listed: generationOf("p")}, effect[ConfirmGeneration](t, effects))
			effect[StartActive](t, effects)
		})
		t.Run(c.name+", standby", func(t *testing.T) {
			r := newRunRig(t)
			effects := r.start(ranIdentity(c.run, c.claimed), inRuns(recordWith(1, 1, 0), c.named, runOfB), 0, 1)
			effect[ClaimGeneration](t, effects)
			if c.named != uuid.Nil {
				requireNo[StartFollower](t, effects) // its acks would not count
			}
			swap := effect[SwapRecord](t, effects)
			require.Equal(t, recordWith(1).Active, swap.Next.Active)
			me, _ := swap.Next.Member(testNodes[0].ID)
			require.Equal(t, generationOf("p"), me.Generation)
			effects = r.won()
			effect[ConfirmGeneration](t, effects)
			require.Equal(t, RoleStandby, r.s.Role())
		})
	}
}

// If a node of the pair has the previous release, which drops generations when it writes the record, no generation is
// listed.
func TestGenerationNotListedByOlderRelease(t *testing.T) {
	r := newRig(t, Settings{})
	effects := r.start(ranIdentity(runBefore, uuid.Nil), recordWith(1, 1, 0), 0, 1)
	effect[StartFollower](t, effects)
	requireNo[SwapRecord](t, effects)
	require.Equal(t, RoleStandby, r.s.Role())
}

// A running node that is replaced by another generation stops, and no longer participates.
func TestSuperseded(t *testing.T) {
	t.Run("active", func(t *testing.T) {
		r := newRunRig(t)
		r.start(ranIdentity(runBefore, uuid.Nil), inRuns(recordWith(0, 0), runBefore, uuid.Nil), 0)
		r.won()
		r.report(ActiveReady{})
		require.True(t, r.s.act.sent.Serve)
		// A copy of the directory was started elsewhere: its generation is listed in a new term.
		stolen := next(inRuns(r.s.rec, runOther, uuid.Nil), "c/7/0")
		stolen.Term++
		effects := r.seeRecord(stolen, 102)
		require.Equal(t, []string{"stop-active"}, kinds(effects))
		require.Contains(t, r.s.Reason(), "superseded")
		requireNo[SwapRecord](t, r.after(time.Hour))
		// The node does not participate even after that process has terminated.
		later := next(stolen, "d")
		later.Term, later.InSync[0].Generation = later.Term+1, generationOf("p")
		require.Empty(t, kinds(r.seeRecord(later, 103)))
	})
	t.Run("standby", func(t *testing.T) {
		r := newRunRig(t)
		r.start(ranIdentity(runBefore, uuid.Nil), inRuns(recordWith(1, 1, 0), runBefore, runOfB), 0, 1)
		r.won()
		require.Equal(t, []string{"stop-follower"},
			kinds(r.seeRecord(next(inRuns(r.s.rec, runOther, runOfB), "c"), 102)))
		require.Contains(t, r.s.Reason(), "superseded")
	})
}

// If the record no longer lists the generations of a directory, the directory is a copy, or was restored from an older
// copy. It is treated as one with lost records (INV-6).
func TestOldCopy(t *testing.T) {
	t.Run("the other node is in sync", func(t *testing.T) {
		r := newRunRig(t)
		effects := r.start(ranIdentity(runBefore, runTried), inRuns(recordWith(0, 0, 1), runOther, runOfB), 0, 1)
		effect[MarkLoss](t, effects)
		requireNo[StartActive](t, effects)
		swap := effect[SwapRecord](t, effects)
		require.Len(t, swap.Next.InSync, 1)
		require.Equal(t, testNodes[1].ID, swap.Next.InSync[0].Node)
		require.Contains(t, r.s.Reason(), "rolled back")
		effects = r.won()
		effect[ClearLoss](t, effects)
		healed := r.s.ident
		healed.MayHaveLost, healed.Incarnation = false, healed.Incarnation+1
		r.step(IdentityChanged{Identity: healed})
		rec := next(r.s.rec, "b/7/0")
		rec.Active, rec.InSync = testNodes[1].ID, append(slices.Clone(rec.InSync), healed.Member())
		r.seeRecord(rec, 102)
		require.Empty(t, r.s.proc.rolledBack, "the missing records were fetched")
	})
	t.Run("no other node is in sync", func(t *testing.T) {
		r := newRunRig(t)
		effects := r.start(ranIdentity(runBefore, uuid.Nil), inRuns(recordWith(0, 0), runOther, uuid.Nil), 0)
		effect[MarkLoss](t, effects)
		requireNo[SwapRecord](t, effects)
		requireNo[SwapRecord](t, r.after(time.Hour))
		require.Contains(t, r.s.Reason(), "failover --force")
	})
}

// A copy of a standby that was not in sync runs next to the original, which it could not query. The copy has the
// original's generation on disk. When the active adds the original to in_sync, the copy must not act as that
// generation, because it lacks the records that the original acknowledged.
func TestOriginalIsListedNextToCopy(t *testing.T) {
	alone := func() Record { return inRuns(recordWith(1, 1), uuid.Nil, runOfB) }
	original := func() Record { return next(inRuns(recordWith(1, 1, 0), runBefore, runOfB), "b/7/0") }
	t.Run("original listed while the copy runs", func(t *testing.T) {
		r := newRunRig(t)
		effects := r.start(ranIdentity(runBefore, runTried), alone(), 0, 1)
		require.Equal(t, ClaimGeneration{Claimed: generationOf("p")}, effect[ClaimGeneration](t, effects),
			"a later process from this disk must not own that generation either")
		effect[MarkLoss](t, r.seeRecord(original(), 101))
		require.False(t, r.s.eligible())
		require.Contains(t, r.s.Reason(), "rolled back")
	})
	t.Run("copy listed at its start", func(t *testing.T) {
		r := newRunRig(t)
		r.start(ranIdentity(runBefore, uuid.Nil), inRuns(recordWith(1, 1, 0), runBefore, runOfB), 0, 1)
		effects := r.seeRecord(next(alone(), "b/6/0"), 101)
		require.Equal(t, ClaimGeneration{Claimed: generationOf("p")}, effect[ClaimGeneration](t, effects))
		late := original()
		late.Config++
		effect[MarkLoss](t, r.seeRecord(late, 102))
		require.False(t, r.s.eligible())
	})
	t.Run("copy listed with its own generation", func(t *testing.T) {
		r := newRunRig(t)
		r.start(ranIdentity(runBefore, uuid.Nil), inRuns(recordWith(1, 1, 0), runBefore, runOfB), 0, 1)
		r.won()
		out := next(alone(), "b/7/0")
		out.Config = r.s.rec.Config + 1
		requireNo[ClaimGeneration](t, r.seeRecord(out, 102))
		back := original()
		back.Config = out.Config + 1
		r.seeRecord(back, 103)
		require.Contains(t, r.s.Reason(), "superseded")
	})
	t.Run("outdated record from the watch", func(t *testing.T) {
		// The first record from the watch may be older than the one that lists the previous generation.
		r := newRunRig(t)
		r.step(Started{Identity: ranIdentity(runBefore, uuid.Nil)})
		r.observe(true, 0, 1)
		requireNo[ClaimGeneration](t, r.seeRecord(alone(), 100))
		effects := r.step(Loaded{Record: original(), Revision: 101})
		requireNo[MarkLoss](t, effects)
		require.Equal(t, ClaimGeneration{Listed: runBefore, Claimed: generationOf("p")}, effect[ClaimGeneration](t, effects))
	})
}
