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
	genBefore = uuid.MustParse("a0a0a0a0-0000-0000-0000-000000000000")
	genTried  = uuid.MustParse("a1a1a1a1-0000-0000-0000-000000000000")
	genOther  = uuid.MustParse("cccccccc-0000-0000-0000-000000000000")
	genOfB    = uuid.MustParse("b0b0b0b0-0000-0000-0000-000000000000")
)

// newGenRig returns a rig of two nodes of a release that supports generations.
func newGenRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t, Settings{})
	r.features = KnownFeatures()
	return r
}

// withFeatures returns the record with the features of this build on its nodes.
func withFeatures(rec Record) Record {
	rec = rec.Clone()
	for i := range rec.Nodes {
		rec.Nodes[i].Features = KnownFeatures()
	}
	return rec
}

// withGens returns the record with generations in the entries of a and b.
func withGens(rec Record, a, b uuid.UUID) Record {
	rec = withFeatures(rec)
	for i := range rec.InSync {
		rec.InSync[i].Generation = map[uuid.UUID]uuid.UUID{testNodes[0].ID: a, testNodes[1].ID: b}[rec.InSync[i].Node]
	}
	return rec
}

// genIdentity returns usedIdentity with generations.
func genIdentity(run, claimed uuid.UUID) Identity {
	id := usedIdentity()
	id.Generation, id.ClaimedGeneration = run, claimed
	return id
}

// next returns the record that follows rec, written by another node or process.
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
		{"listed", genBefore, uuid.Nil, genBefore},
		{"stopped before it read its listed generation", genBefore, genTried, genTried},
		{"stopped before its generation was listed", genBefore, genTried, genBefore},
		{"written by a release without generations", uuid.Nil, uuid.Nil, uuid.Nil},
	} {
		t.Run(c.name+", active", func(t *testing.T) {
			r := newGenRig(t)
			effects := r.start(genIdentity(c.run, c.claimed), withGens(recordWith(0, 0), c.named, uuid.Nil), 0)
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
			r := newGenRig(t)
			effects := r.start(genIdentity(c.run, c.claimed), withGens(recordWith(1, 1, 0), c.named, genOfB), 0, 1)
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
	effects := r.start(genIdentity(genBefore, uuid.Nil), recordWith(1, 1, 0), 0, 1)
	effect[StartFollower](t, effects)
	requireNo[SwapRecord](t, effects)
	require.Equal(t, RoleStandby, r.s.Role())
}

// A running node that is replaced by another generation stops, and no longer participates.
func TestSuperseded(t *testing.T) {
	t.Run("active", func(t *testing.T) {
		r := newGenRig(t)
		r.start(genIdentity(genBefore, uuid.Nil), withGens(recordWith(0, 0), genBefore, uuid.Nil), 0)
		r.won()
		r.report(ActiveReady{})
		require.True(t, r.s.act.sent.Serve)
		// A copy of the directory was started elsewhere: its generation is listed in a new term.
		copied := next(withGens(r.s.rec, genOther, uuid.Nil), "c/7/0")
		copied.Term++
		effects := r.seeRecord(copied, 102)
		require.Equal(t, []string{"stop-active"}, kinds(effects))
		require.Contains(t, r.s.Reason(), "superseded")
		requireNo[SwapRecord](t, r.after(time.Hour))
		// The node does not participate even after that process has terminated.
		later := next(copied, "d")
		later.Term, later.InSync[0].Generation = later.Term+1, generationOf("p")
		require.Empty(t, kinds(r.seeRecord(later, 103)))
	})
	t.Run("standby", func(t *testing.T) {
		r := newGenRig(t)
		r.start(genIdentity(genBefore, uuid.Nil), withGens(recordWith(1, 1, 0), genBefore, genOfB), 0, 1)
		r.won()
		require.Equal(t, []string{"stop-follower"},
			kinds(r.seeRecord(next(withGens(r.s.rec, genOther, genOfB), "c"), 102)))
		require.Contains(t, r.s.Reason(), "superseded")
	})
}

// If the record no longer lists the generations of a directory, the directory is a copy, or was restored from an older
// copy. It is treated as one with lost records (INV-6).
func TestOldCopyOfDirectory(t *testing.T) {
	t.Run("the other node is in sync", func(t *testing.T) {
		r := newGenRig(t)
		effects := r.start(genIdentity(genBefore, genTried), withGens(recordWith(0, 0, 1), genOther, genOfB), 0, 1)
		effect[MarkLoss](t, effects)
		requireNo[StartActive](t, effects)
		swap := effect[SwapRecord](t, effects)
		require.Len(t, swap.Next.InSync, 1)
		require.Equal(t, testNodes[1].ID, swap.Next.InSync[0].Node)
		require.Contains(t, r.s.Reason(), "rolled back")
		effects = r.won()
		effect[ClearLoss](t, effects)
		cleared := r.s.ident
		cleared.MayHaveLost, cleared.Incarnation = false, cleared.Incarnation+1
		r.step(IdentityChanged{Identity: cleared})
		rec := next(r.s.rec, "b/7/0")
		rec.Active, rec.InSync = testNodes[1].ID, append(slices.Clone(rec.InSync), cleared.Member())
		r.seeRecord(rec, 102)
		require.Empty(t, r.s.proc.rolledBack, "the missing records were fetched")
	})
	t.Run("no other node is in sync", func(t *testing.T) {
		r := newGenRig(t)
		effects := r.start(genIdentity(genBefore, uuid.Nil), withGens(recordWith(0, 0), genOther, uuid.Nil), 0)
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
	alone := func() Record { return withGens(recordWith(1, 1), uuid.Nil, genOfB) }
	original := func() Record { return next(withGens(recordWith(1, 1, 0), genBefore, genOfB), "b/7/0") }
	t.Run("original listed while the copy runs", func(t *testing.T) {
		r := newGenRig(t)
		effects := r.start(genIdentity(genBefore, genTried), alone(), 0, 1)
		require.Equal(t, ClaimGeneration{Claimed: generationOf("p")}, effect[ClaimGeneration](t, effects),
			"a later process from this disk must not own that generation either")
		effect[MarkLoss](t, r.seeRecord(original(), 101))
		require.False(t, r.s.eligible())
		require.Contains(t, r.s.Reason(), "rolled back")
	})
	t.Run("copy listed at its start", func(t *testing.T) {
		r := newGenRig(t)
		r.start(genIdentity(genBefore, uuid.Nil), withGens(recordWith(1, 1, 0), genBefore, genOfB), 0, 1)
		effects := r.seeRecord(next(alone(), "b/6/0"), 101)
		require.Equal(t, ClaimGeneration{Claimed: generationOf("p")}, effect[ClaimGeneration](t, effects))
		late := original()
		late.Config++
		effect[MarkLoss](t, r.seeRecord(late, 102))
		require.False(t, r.s.eligible())
	})
	t.Run("copy listed with its own generation", func(t *testing.T) {
		r := newGenRig(t)
		r.start(genIdentity(genBefore, uuid.Nil), withGens(recordWith(1, 1, 0), genBefore, genOfB), 0, 1)
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
		// The first record from the watch may be older than the record that lists the previous generation.
		r := newGenRig(t)
		r.step(Started{Identity: genIdentity(genBefore, uuid.Nil)})
		r.observe(true, 0, 1)
		requireNo[ClaimGeneration](t, r.seeRecord(alone(), 100))
		effects := r.step(Loaded{Record: original(), Revision: 101})
		requireNo[MarkLoss](t, effects)
		require.Equal(t, ClaimGeneration{Listed: genBefore, Claimed: generationOf("p")}, effect[ClaimGeneration](t, effects))
	})
}
