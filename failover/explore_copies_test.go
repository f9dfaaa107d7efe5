// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/tier"
)

// This file explores worlds with copied, restored or moved disks.

// must returns the world after the actions. An action that violates an invariant fails the test.
func must(t *testing.T, w world, as ...action) world {
	t.Helper()
	for _, a := range as {
		var err error
		w, err = w.do(a)
		require.NoError(t, err, "%s", a)
	}
	return w
}

// written returns the world after a write that the active on a host has acknowledged.
func written(t *testing.T, w world, i int) world {
	t.Helper()
	w.left = budget{write: 1}
	w = must(t, w, action{"write", i, 0})
	return settle(t, w, func(w *world) bool {
		n := &w.hosts[i]
		return n.primary != nil && n.primary.commit == len(n.log)
	})
}

// down returns the world with hosts stopped, as in a power failure.
func down(t *testing.T, w world, hosts ...int) world {
	t.Helper()
	for _, i := range hosts {
		if w.hosts[i].up {
			w.left.crash++
			w = must(t, w, action{"crash", i, len(w.hosts[i].log)})
		}
	}
	return w
}

// imaged returns a world in which an image of a host was taken before two more writes. If sealed is set, both nodes
// have recorded the committed position on disk.
func imaged(t *testing.T, of int, sealed bool) world {
	t.Helper()
	w := pairWorld(t)
	w.left = budget{image: 1}
	w = must(t, w, action{"image", of, len(w.hosts[of].log)})
	w = written(t, written(t, w, 0), 0)
	if sealed {
		for i := range testNodes {
			w.hosts[i].known = w.knownCommit(i)
		}
	}
	return w
}

// marked returns the world with the committed position of a host written to the coordinator.
func marked(t *testing.T, w world, i int) world {
	t.Helper()
	w.left = budget{mark: 1}
	return must(t, w, action{"mark", i, 0})
}

// placed returns the world with the image placed in a host.
func placed(t *testing.T, w world, i int) world {
	t.Helper()
	w.left = budget{place: 1}
	require.True(t, w.mayReplace(i, w.copies.image), "undetectable loss")
	w = must(t, w, action{"place", i, 0})
	w.left = budget{}
	return w
}

// diskStarts returns worlds with a replaced or copied disk, and the remaining budget of failures.
func diskStarts(t *testing.T) map[string]world {
	t.Helper()
	starts := map[string]world{}
	add := func(name string, w world, b budget) {
		w.left = b
		starts[name] = w
	}
	for of, name := range []string{"active", "standby"} {
		for _, sealed := range []bool{true, false} {
			w := imaged(t, of, sealed)
			suffix := map[bool]string{true: "", false: ", the newest commit is not sealed"}[sealed]
			back := placed(t, down(t, w, 0, 1), of)
			add(name+" restored"+suffix, back, budget{tick: 3, write: 1})
			add(name+" restored, faults"+suffix, back, budget{tick: 2, cut: 1, unknown: 1, crash: 1, write: 1})
			add(name+" restored, marked"+suffix, placed(t, down(t, marked(t, w, 0), 0, 1), of),
				budget{tick: 3, write: 1})
			add(name+" restored while the other runs"+suffix, placed(t, down(t, w, of), of),
				budget{tick: 3, write: 1, cut: 1})
			add(name+" resumed"+suffix, w, budget{resume: 1, tick: 2, write: 1})
		}
		w := imaged(t, of, true)
		add(name+" copied to the other's host", placed(t, down(t, marked(t, w, 0), 1-of), 1-of),
			budget{tick: 3, write: 1})
		add(name+" copied next to the pair", placed(t, marked(t, w, 0), 2), budget{tick: 3, write: 1, crash: 1})
		add(name+" copied at the end, next to the pair",
			placed(t, must(t, withLeft(w, budget{image: 1}), action{"image", of, len(w.hosts[of].log)}), 2),
			budget{tick: 3, write: 1, crash: 1})
		add(name+" copied next to the pair, which goes down", placed(t, down(t, marked(t, w, 0), 0, 1), 2),
			budget{tick: 3, write: 1})
	}
	alone := written(t, imagedAlone(t), 0)
	add("alone, restored, marked", placed(t, down(t, marked(t, alone, 0), 0), 0), budget{tick: 3, write: 1})
	add("alone, copied to the other's host, marked", placed(t, marked(t, alone, 0), 1),
		budget{tick: 3, write: 1, crash: 1})
	add("standby copied next to the original, which is listed later", copiedStandby(t), budget{crash: 1, cut: 1, tick: 2})
	add("disks swapped", must(t, withLeft(down(t, pairWorld(t), 0, 1), budget{swap: 1}),
		action{"swap-disks", 0, 0}), budget{tick: 3, write: 1})
	add("standby empty", must(t, withLeft(down(t, pairWorld(t), 1), budget{empty: 1}), action{"empty", 1, 0}),
		budget{tick: 2, write: 1})
	add("active empty", must(t, withLeft(down(t, pairWorld(t), 0), budget{empty: 1}), action{"empty", 0, 0}),
		budget{tick: 2, write: 1})
	add("any fault", pairWorld(t), budget{image: 1, seal: 1, place: 1, crash: 2, write: 1, tick: 2, mark: 1})
	return starts
}

func withLeft(w world, b budget) world {
	w.left = b
	return w
}

// imagedAlone returns soloWorld with an image of the active.
func imagedAlone(t *testing.T) world {
	t.Helper()
	w := soloWorld(t)
	w.left = budget{image: 1}
	return must(t, w, action{"image", 0, len(w.hosts[0].log)})
}

// copiedStandby returns a world with a copy of a standby in the third host, which cannot query the original. The
// original was not in sync when it was copied. The copy connected to the active first, then the original, which was
// added to in_sync. A write was acknowledged, and the copy has not read the record yet.
func copiedStandby(t *testing.T) world {
	t.Helper()
	w := soloWorld(t)
	require.NoError(t, w.restart(1))
	w = settle(t, w, func(w *world) bool { return w.hosts[1].follow != nil && w.hosts[1].st.liveKnown })
	w = must(t, withLeft(w, budget{image: 1}), action{"image", 1, len(w.hosts[1].log)})
	w = placed(t, w, 2)
	w.hosts[1].hidden = true
	w = must(t, w, action{"restart", 2, 0})
	do := func(host int, until func() bool, kinds ...string) {
		for range 50 {
			if until() {
				return
			}
			for _, a := range w.actions() {
				if a.node == host && slices.Contains(kinds, a.kind) || a.node == 0 && slices.Contains(regular, a.kind) {
					w = must(t, w, a)
					break
				}
			}
		}
		require.Fail(t, "not reached")
	}
	do(2, func() bool { return w.hosts[2].st.follow.connected }, "observe", "load", "connect", "event", "swap")
	w = must(t, withLeft(w, budget{cut: 1}), action{"cut", 2, 0})
	do(2, func() bool { return !w.hosts[2].st.follow.connected }, "event")
	do(1, func() bool { return len(w.rec.InSync) == 2 && len(w.inflight) == 0 && w.hosts[0].swap == nil },
		"connect", "event", "replicate", "load", "observe")
	w.left = budget{write: 1}
	w = must(t, w, action{"write", 0, 0})
	do(1, func() bool { return w.hosts[0].primary.commit == len(w.hosts[0].log) }, "replicate")
	return marked(t, w, 0)
}

// TestExploreDisks is like TestExplore, with copied, restored and moved disks.
func TestExploreDisks(t *testing.T) {
	exploreFrom(t, diskStarts(t), envInt("LOCKSTEP_EXPLORE", 1500))
}

// TestWalkDisks takes long random paths with copied, restored and moved disks. Except in short mode, each disk action
// other than resume-old must occur.
func TestWalkDisks(t *testing.T) {
	walks, seed := envInt("LOCKSTEP_WALKS", tier.Count(1500, 2000)), envInt("LOCKSTEP_SEED", 1)
	starts := diskStarts(t)
	names := slices.Sorted(maps.Keys(starts))
	taken, undetectable, kinds := 0, 0, map[string]int{}
	for k := range walks {
		k += seed
		rng := rand.New(rand.NewPCG(uint64(k), 1))
		w := starts[names[k%len(names)]]
		w.left = budget{
			crash: 5, cut: 3, unknown: 3, loadFail: 2, unreach: 2, write: 10, tick: 40, switchover: 2, mark: 4,
			image: 3, seal: 6, place: 2, swap: 1, empty: 1,
		}
		var path []action
		for range 300 {
			as := w.actions()
			if len(as) == 0 {
				break
			}
			if rng.IntN(4) > 0 {
				if good := slices.DeleteFunc(slices.Clone(as),
					func(a action) bool { return !slices.Contains(regular, a.kind) }); len(good) > 0 {
					as = good
				}
			}
			a := as[rng.IntN(len(as))]
			path = append(path, a)
			var err error
			if w, err = w.do(a); errors.Is(err, errUndetectable) {
				undetectable++
				break
			}
			require.NoError(t, err, "LOCKSTEP_SEED=%d LOCKSTEP_WALKS=1, from %q, after %v", k, names[k%len(names)],
				path)
			taken++
			kinds[a.kind]++
		}
	}
	t.Logf("%d walks, %d steps, %d ended by an undetectable loss: %v", walks, taken, undetectable, kinds)
	for _, kind := range diskMoves {
		// A machine that loses its pending coordinator requests has too many states: it is only explored near the
		// starting points.
		if kind != "resume-old" && !testing.Short() {
			require.NotZero(t, kinds[kind], "no walk had the action %q", kind)
		}
	}
}
