// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
	"github.com/lockstep-mq/lockstep/test/vfs/faultdisk"
)

// overloadFactor is the number of busy programs per CPU, in addition to the pair.
const overloadFactor = 4

// With four busy programs per CPU, for the duration LOCKSTEP_OVERLOAD ("1h"), a pair with default settings performs
// no failover and loses no acknowledged message. Delays of a healthy node are injected repeatedly: a process is
// stopped for 100 ms, or syncs take 300 ms for a while. Dropped standbys are counted: they do not affect clients, but
// the pair has no redundancy for a while.
func TestOverload(t *testing.T) {
	limit, err := cluster.FromEnv("LOCKSTEP_OVERLOAD", 0, time.ParseDuration)
	require.NoError(t, err)
	if limit == 0 {
		t.Skip("the test overloads the machine; set LOCKSTEP_OVERLOAD=1h, and run it alone")
	}
	s := seed(t)
	p := start(t, cluster.Options{Disk: cluster.CanBreakDisks(binary)})
	for range overloadFactor * runtime.GOMAXPROCS(0) {
		startBusyLoop(t)
	}
	o := overload{t: t, p: p, rng: rand.New(rand.NewPCG(s, 3)), longest: map[string]time.Duration{}}
	defer func() { t.Log(o.summary()) }()
	o.watch()
	for round := uint64(0); o.reported.lasts < limit; round++ {
		w := work(t, p, cluster.WorkloadOptions{Prefix: fmt.Sprintf("round-%d-", round), Seed: s + round})
		o.round(w, min(limit-o.reported.lasts, time.Minute))
		verify(t, p, w)
		o.watch()
	}
}

// startBusyLoop runs a busy loop in a separate process until the test ends.
func startBusyLoop(t *testing.T) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "sh", "-c", "while :; do :; done")
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
	})
}

// overload injects delays into healthy nodes, and checks that no node is treated as failed.
type overload struct {
	t        *testing.T
	p        *cluster.Pair
	rng      *rand.Rand
	began    time.Time
	active   *cluster.Node
	longest  map[string]time.Duration // interval without an acknowledgement, by kind of delay
	reported struct {
		lasts                time.Duration
		term, config         uint64
		stops, slow, nothing int
	}
}

// watch waits until the pair is in sync, and requires that the term is unchanged.
func (o *overload) watch() {
	o.t.Helper()
	active, _ := inSync(o.t, o.p)
	pair := statusOf(o.t, active).GetPair()
	if o.active == nil {
		o.began, o.active, o.reported.term, o.reported.config = time.Now(), active, pair.GetTerm(), pair.GetConfig()
	}
	require.Equal(o.t, o.reported.term, pair.GetTerm(), "%s has taken over from %s, which was running: %s", active.Name,
		o.active.Name, o.summary())
	o.reported.lasts = time.Since(o.began)
}

// round injects random delays into random nodes for the given duration.
func (o *overload) round(w *cluster.Workload, lasts time.Duration) {
	for start := time.Now(); time.Since(start) < lasts; {
		since := w.History().Now()
		n := o.p.Nodes()[o.rng.IntN(2)]
		label := "nothing"
		switch kind := o.rng.IntN(3); {
		case kind == 0:
			label = "a stop of 100 ms"
			o.reported.stops++
			require.NoError(o.t, n.Pause())
			<-time.After(100 * time.Millisecond)
			require.NoError(o.t, n.Wake())
		case kind == 1 && cluster.CanBreakDisks(binary):
			label = "syncs of 300 ms"
			o.reported.slow++
			setDisk(o.t, n, faultdisk.State{Rules: []faultdisk.Rule{{
				Ops: []string{"sync"}, Delay: 300 * time.Millisecond,
			}}})
			<-time.After(2 * time.Second)
			setDisk(o.t, n, healthyDisk)
		default:
			o.reported.nothing++
		}
		<-time.After(time.Duration(1+o.rng.IntN(4)) * time.Second)
		acked(o.t, w)
		o.longest[label] = max(o.longest[label], longestPause(w, since))
		o.watch()
	}
}

// longestPause returns the longest interval without an acknowledgement after a time in the history.
func longestPause(w *cluster.Workload, since time.Duration) (longest time.Duration) {
	var at []time.Duration
	for _, p := range w.History().PublishesSoFar() {
		if p.Outcome == historycheck.Acked && p.Done > since {
			at = append(at, p.Done)
		}
	}
	slices.Sort(at)
	for _, done := range at {
		longest, since = max(longest, done-since), done
	}
	return longest
}

// summary returns the injected delays and their effects.
func (o *overload) summary() string {
	config := o.reported.config
	if s, err := o.active.Status(context.WithoutCancel(o.t.Context())); err == nil {
		config = s.GetPair().GetConfig()
	}
	return fmt.Sprintf("%v with %d programs per CPU: %d stops of 100 ms, %d rounds with syncs of 300 ms, %d rounds "+
		"without a delay; the record was changed %d times (twice for each standby that was dropped); the "+
		"longest time without an acknowledgement: %v", o.reported.lasts.Round(time.Second), overloadFactor, o.reported.stops,
		o.reported.slow, o.reported.nothing, config-o.reported.config, o.longest)
}
