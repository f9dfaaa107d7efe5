// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/tier"
)

// settle applies all regular actions, and timers if nothing else is possible, until done returns true.
func settle(t *testing.T, w world, done func(*world) bool) world {
	t.Helper()
	w.left.tick = 50
	for range 500 {
		if done(&w) {
			w.left = budget{}
			return w
		}
		as := w.actions()
		i := slices.IndexFunc(as, func(a action) bool { return slices.Contains(regular, a.kind) })
		if i < 0 {
			i = slices.IndexFunc(as, func(a action) bool { return a.kind == "tick" })
		}
		require.GreaterOrEqual(t, i, 0, "stuck: a %s %q, b %s %q", w.hosts[0].st.Role(), w.hosts[0].st.Reason(),
			w.hosts[1].st.Role(), w.hosts[1].st.Reason())
		var err error
		w, err = w.do(as[i])
		require.NoError(t, err)
	}
	require.FailNow(t, "not reached", "a %s %q, b %s %q", w.hosts[0].st.Role(), w.hosts[0].st.Reason(),
		w.hosts[1].st.Role(), w.hosts[1].st.Reason())
	return w
}

// roles returns a condition for settle: the hosts have these roles, and no work is pending.
func roles(a, b Role) func(*world) bool {
	return func(w *world) bool {
		return w.hosts[0].st.Role() == a && w.hosts[1].st.Role() == b &&
			len(w.hosts[0].queue)+len(w.hosts[1].queue) == 0 &&
			(w.hosts[0].primary == nil || w.hosts[0].primary.commit == len(w.hosts[0].log))
	}
}

// freshWorld returns a world with two empty nodes, of which b is not started.
func freshWorld(t *testing.T) world {
	t.Helper()
	w := newWorld()
	require.NoError(t, w.restart(0))
	return w
}

// pairWorld returns a world with an active a and a standby b, both in sync, after one write.
func pairWorld(t *testing.T) world {
	t.Helper()
	w := settle(t, freshWorld(t), func(w *world) bool { return w.hosts[0].st.Role() == RoleActiveAlone })
	require.NoError(t, w.restart(1))
	w = settle(t, w, roles(RoleActive, RoleStandby))
	w.left.write = 1
	w, err := w.do(action{"write", 0, 0})
	require.NoError(t, err)
	return settle(t, w, roles(RoleActive, RoleStandby))
}

// soloWorld returns a world with an active a. b is stopped and not in sync.
func soloWorld(t *testing.T) world {
	t.Helper()
	w := pairWorld(t)
	w.left.crash = 1
	w, err := w.do(action{"crash", 1, len(w.hosts[1].log)})
	require.NoError(t, err)
	return settle(t, w, func(w *world) bool {
		return w.hosts[0].st.Role() == RoleActiveAlone &&
			len(w.rec.InSync) == 1
	})
}

// lostWorld returns a world in which the active a committed a write alone and is stopped. b is running without that
// write, and has detected that a is lost.
func lostWorld(t *testing.T) world {
	t.Helper()
	w := soloWorld(t)
	w.left.write = 1
	w, err := w.do(action{"write", 0, 0})
	require.NoError(t, err)
	w = settle(t, w, func(w *world) bool { return w.hosts[0].primary.commit == len(w.hosts[0].log) })
	w.left.crash = 1
	w, err = w.do(action{"crash", 0, len(w.hosts[0].log)})
	require.NoError(t, err)
	require.NoError(t, w.restart(1))
	return settle(t, w, func(w *world) bool {
		return w.hosts[1].st.checkForce(w.rec.Config) == nil &&
			len(w.hosts[1].queue) == 0
	})
}

// preferredWorld returns pairWorld with b preferred, before the failback.
func preferredWorld(t *testing.T) world {
	t.Helper()
	w := newWorld()
	w.preferB = true
	require.NoError(t, w.restart(0))
	w = settle(t, w, func(w *world) bool { return w.hosts[0].st.Role() == RoleActiveAlone })
	require.NoError(t, w.restart(1))
	w = settle(t, w, roles(RoleActive, RoleStandby))
	require.NoError(t, w.act(action{"observe", 0, 0})) // that b is preferred
	require.NotEqual(t, never, w.hosts[0].st.act.transferAt)
	return w
}

type step struct {
	parent int
	a      action
}

func explain(steps []step, at int, last action) string {
	path := []string{last.String()}
	for at > 0 {
		path = append(path, steps[at].a.String())
		at = steps[at].parent
	}
	slices.Reverse(path)
	return fmt.Sprint(path)
}

// envInt returns a number from the environment, or the default. With -short, such as under the race detector, the
// default is divided by ten.
func envInt(name string, def int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	if testing.Short() && name != "LOCKSTEP_SEED" {
		return def / 10
	}
	return def
}

// found is the result of an exploration.
type found struct {
	name          string
	worlds, depth int
	complete      bool
	took          time.Duration
}

// table prints the rows and the total number of worlds.
func table(t *testing.T, rows []found) {
	t.Helper()
	all := 0
	for _, r := range rows {
		all += r.worlds
		t.Logf("%-45s %7d worlds %3d steps deep  complete: %-5t  %s", r.name, r.worlds, r.depth, r.complete,
			r.took.Round(time.Millisecond))
	}
	t.Logf("%-45s %7d worlds", "all", all)
}

// explore visits all reachable worlds, breadth first, up to a limit. It returns their number and the depth.
func explore(t *testing.T, start world, limit int) (worlds, depth int, complete bool) {
	t.Helper()
	seen := map[uint64]struct{}{start.key(): {}}
	level := []world{start}
	ids := []int{0}
	steps := []step{{}}
	undetectable := 0
	defer func() {
		if undetectable > 0 {
			t.Logf("%d paths end with an undetectable loss", undetectable)
		}
	}()
	for len(level) > 0 {
		var next []world
		var nextIDs []int
		for k, w := range level {
			for _, a := range w.actions() {
				v, err := w.do(a)
				if errors.Is(err, errUndetectable) {
					undetectable++
					continue
				}
				if err != nil {
					require.NoError(t, err, "after %s", explain(steps, ids[k], a))
				}
				key := v.key()
				if _, ok := seen[key]; ok {
					continue
				}
				if len(seen) >= limit {
					return len(seen), depth, false
				}
				seen[key] = struct{}{}
				steps = append(steps, step{parent: ids[k], a: a})
				next, nextIDs = append(next, v), append(nextIDs, len(steps)-1)
			}
		}
		level, ids = next, nextIDs
		depth++
	}
	return len(seen), depth, true
}

// TestExplore visits worlds that are reachable from a set of starting points. LOCKSTEP_EXPLORE is the maximum number
// of worlds per starting point.
func TestExplore(t *testing.T) {
	exploreFrom(t, exploreStarts(t), envInt("LOCKSTEP_EXPLORE", 5000))
}

// exploreFrom visits worlds that are reachable from each starting point, up to a limit.
func exploreFrom(t *testing.T, starts map[string]world, limit int) {
	t.Helper()
	var rows []found
	for _, name := range slices.Sorted(maps.Keys(starts)) {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			n, depth, complete := explore(t, starts[name], limit)
			rows = append(rows, found{name, n, depth, complete, time.Since(begin)})
		})
	}
	table(t, rows)
}

// TestExploreAll visits every reachable world for small failure budgets.
func TestExploreAll(t *testing.T) {
	var rows []found
	for _, c := range []struct {
		name  string
		start world
		left  budget
	}{
		{"pair, cut", pairWorld(t), budget{cut: 1}},
		{"pair, cut, unknown swap", pairWorld(t), budget{cut: 1, unknown: 1}},
		{"pair, switchover", pairWorld(t), budget{switchover: 1}},
		{"pair, cut, unreachable", pairWorld(t), budget{unreach: 1, cut: 1}},
		{"pair, paused", pairWorld(t), budget{pause: 1, unreach: 1}},
		{"lost, forced", goneWorld(t), budget{force: 1, write: 1, tick: 1}},
		{"lost, forced, unknown swap", goneWorld(t), budget{force: 1, unknown: 1, unreach: 1}},
		{"lost, forced, blind", blindWorld(t), budget{force: 1, blind: 1}},
		{"pair, record lost and adopted", pairWorld(t), budget{lose: 1, adopt: 1, write: 1}},
		{"preferred, failback", preferredWorld(t), budget{tick: 1, write: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			begin := time.Now()
			c.start.left = c.left
			n, depth, complete := explore(t, c.start, 20000)
			rows = append(rows, found{c.name, n, depth, complete, time.Since(begin)})
			require.True(t, complete)
		})
	}
	table(t, rows)
}

func exploreStarts(t *testing.T) map[string]world {
	t.Helper()
	starts := map[string]world{}
	add := func(name string, w world, b budget) {
		w.left = b
		starts[name] = w
	}
	add("first start", freshWorld(t), budget{crash: 1, unknown: 1, write: 1, tick: 2})
	add("pair, crash", pairWorld(t), budget{crash: 1, write: 1, tick: 2})
	add("pair, cut link", pairWorld(t), budget{cut: 1, unknown: 1, write: 1, tick: 2})
	add("pair, unknown swaps", pairWorld(t), budget{cut: 1, unknown: 2, tick: 2, loadFail: 1})
	add("pair, loss", pairWorld(t), budget{crash: 1, loss: 1, tick: 2, write: 1})
	add("standby rejoins, unknown swaps", soloWorld(t), budget{unknown: 2, write: 1, crash: 1, cut: 1})
	add("switchover", pairWorld(t), budget{switchover: 1, unknown: 1, write: 1, tick: 2, drainFail: 1})
	add("paused", pairWorld(t), budget{pause: 1, crash: 1, cut: 1, write: 1, tick: 2})
	add("paused, switchover", pairWorld(t), budget{pause: 1, switchover: 1, unknown: 1, write: 1})
	add("forced", lostWorld(t), budget{force: 1, crash: 1, unknown: 1, write: 1, tick: 2})
	add("forced twice", lostWorld(t), budget{force: 2, crash: 2, write: 2})
	add("forced, a loss", lostWorld(t), budget{force: 1, crash: 1, loss: 1, write: 1, tick: 1})
	add("forced, the old active runs", blindWorld(t), budget{force: 1, blind: 1, write: 2, tick: 1, cut: 1})
	add("forced and paused", lostWorld(t), budget{force: 1, pause: 1, crash: 1, write: 1})
	add("adopted", pairWorld(t), budget{lose: 1, adopt: 1, crash: 2, write: 1})
	add("adopted, alone", soloWorld(t), budget{lose: 1, adopt: 1, crash: 1, write: 1, unknown: 1})
	add("failback", preferredWorld(t), budget{cut: 1, write: 1, tick: 3, unknown: 1})
	add("failback, crash", preferredWorld(t), budget{crash: 1, write: 1, tick: 3})
	add("failback, paused", preferredWorld(t), budget{pause: 1, tick: 3, drainFail: 1})
	return starts
}

// TestWalk takes long random paths with many failures. LOCKSTEP_WALKS is the number of paths, LOCKSTEP_SEED
// the first seed.
func TestWalk(t *testing.T) {
	walks, seed := envInt("LOCKSTEP_WALKS", tier.Count(3000, 6000)), envInt("LOCKSTEP_SEED", 1)
	start := pairWorld(t)
	starts := []world{freshWorld(t), start, soloWorld(t), lostWorld(t), preferredWorld(t)}
	taken, kinds := 0, map[string]int{}
	for k := range walks {
		k += seed
		rng := rand.New(rand.NewPCG(uint64(k), 0))
		w := starts[k%len(starts)]
		w.left = budget{
			crash: 5, loss: 1, cut: 6, unknown: 6, loadFail: 4, unreach: 4, write: 12, tick: 60,
			switchover: 4, drainFail: 1, pause: 2, force: 2, blind: int8(k / len(starts) % 2), adopt: 2,
		}
		if k%3 == 0 {
			w.left.lose = 1
		}
		var path []action
		for range 400 {
			as := w.actions()
			if len(as) == 0 {
				break
			}
			if rng.IntN(4) > 0 { // mostly without failures, so that records exist that can be lost
				if good := slices.DeleteFunc(slices.Clone(as),
					func(a action) bool { return !slices.Contains(regular, a.kind) }); len(good) > 0 {
					as = good
				}
			}
			a := as[rng.IntN(len(as))]
			path = append(path, a)
			var err error
			if w, err = w.do(a); err != nil {
				require.NoError(t, err, "LOCKSTEP_SEED=%d LOCKSTEP_WALKS=1 after %v", k, path)
			}
			taken++
			kinds[a.kind]++
		}
		requireRecovers(t, w, k)
	}
	t.Logf("%d walks, %d steps: %v", walks, taken, kinds)
}

// requireRecovers ends all failures and checks that an active and a standby exist again, unless INV-6 forbids it.
func requireRecovers(t *testing.T, w world, seed int) {
	t.Helper()
	for i := range w.hosts {
		if !w.hosts[i].up && !w.hosts[i].bare {
			require.NoError(t, w.restart(i))
		}
	}
	if w = recoverByOperator(t, w); w.rec == nil {
		return
	}
	if common := commonPrefix(w.hosts[0].log, w.hosts[1].log); w.forcedTerm != 0 && w.rec.Forced == nil &&
		common < max(w.hosts[0].keeps(), w.hosts[1].keeps()) {
		// after the loss of the record, the discarded range of a forced failover is unknown: the operator decides
		return
	}
	for _, m := range w.rec.InSync {
		i := slices.IndexFunc(w.hosts[:], func(h whost) bool { return h.nodeID() == m.Node })
		if len(w.rec.InSync) == 1 && (w.hosts[i].loss || m != w.member(i)) {
			return // the node waits for the operator; a forced failover may already be requested
		}
	}
	defer func() {
		if t.Failed() {
			t.Logf("LOCKSTEP_SEED=%d LOCKSTEP_WALKS=1", seed)
		}
	}()
	settle(t, w, func(w *world) bool {
		return len(w.rec.InSync) == 2 && (roles(RoleActive, RoleStandby)(w) || roles(RoleStandby, RoleActive)(w))
	})
}
