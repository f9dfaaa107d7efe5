//go:build unix

package chaos

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

const (
	// defaultRounds are done at most, and only as many as defaultTime allows for.
	defaultRounds = 50
	defaultTime   = 75 * time.Second
	shortRounds   = 3
	// roundsPerHistory: after so many rounds everything is checked, and a new history is begun.
	roundsPerHistory = 10
)

// length of the run: so many rounds, or so much time, whichever ends first.
func length(t *testing.T) (rounds int, limit time.Duration) {
	t.Helper()
	if text := os.Getenv("LOCKSTEP_CHAOS"); text != "" {
		d, err := time.ParseDuration(text)
		require.NoError(t, err, "LOCKSTEP_CHAOS")
		return 1 << 30, d
	}
	if text := os.Getenv("LOCKSTEP_ROUNDS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err, "LOCKSTEP_ROUNDS")
		return n, 24 * time.Hour
	}
	if testing.Short() {
		return shortRounds, defaultTime
	}
	return defaultRounds, defaultTime
}

// TestChaosKill kills the active, the standby or both at random moments under load, restarts them, and lets them find
// together; sometimes the next kill does not wait for that. Nothing that was acknowledged may be lost, doubled, moved
// or delivered again after its acknowledgement was confirmed, and the two stores must hold the same in the end.
func TestChaosKill(t *testing.T) {
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 1))
	rounds, limit := length(t)
	settings := map[string]string{
		// Small, so that checkpoints, trimmed logs, snapshots and page reads happen all the time.
		"checkpoint.bytes":    "2MiB",
		"checkpoint.interval": "700ms",
		"memory.budget":       "16MiB",
		"log.keep-bytes":      []string{"64KiB", "1MiB", "256MiB"}[rng.IntN(3)],
		"log.segment-bytes":   "1MiB",
		"page-size":           []string{"2KiB", "8KiB"}[rng.IntN(2)],
	}
	t.Logf("settings: %v", settings)
	p := start(t, cluster.Options{Settings: settings})
	k := killer{t: t, p: p, rng: rng}
	began := time.Now()
	for done := 0; done < rounds && time.Since(began) < limit; {
		k.w = work(t, p, cluster.WorkloadOptions{Prefix: fmt.Sprintf("round-%d-", done), Seed: s + uint64(done)})
		for range roundsPerHistory {
			k.round()
			done++
			if done >= rounds || time.Since(began) >= limit {
				break
			}
		}
		verify(t, p, k.w)
		require.NoError(t, k.w.Cleanup(limited(t)))
	}
	k.asked.Wait()
	k.summary()
}

// killer does the rounds.
type killer struct {
	t      *testing.T
	p      *cluster.Pair
	w      *cluster.Workload
	rng    *rand.Rand
	counts map[string]int
	asked  sync.WaitGroup // requests under way
	// failover holds, for each kill of the active of a pair in sync, the time to the next acknowledgement.
	failover []time.Duration
}

// round: wait until the pair is in sync, run for a moment, kill, and restart what was killed.
func (k *killer) round() {
	t := k.t
	t.Helper()
	active, standby := inSync(t, k.p)
	acked(t, k.w, ackBound)
	k.pause(150 * time.Millisecond)
	if k.rng.IntN(4) == 0 {
		k.checkpoint(k.p.Nodes()[k.rng.IntN(2)])
	}
	switch dice := k.rng.IntN(100); {
	case dice < 45:
		since := k.w.History().Now()
		k.kill("active", active)
		k.failover = append(k.failover, ackedSince(t, k.w, since, active, ackBound))
		k.pause(150 * time.Millisecond)
		k.start(active)
	case dice < 75:
		k.kill("standby", standby)
		acked(t, k.w, ackBound)
		k.pause(150 * time.Millisecond)
		k.start(standby)
	case dice < 82:
		// So long that the active's log does not reach back any more: it needs a snapshot, if log.keep-bytes is small.
		// The first attempt is killed on the way.
		k.kill("standby, for long", standby)
		k.pause(3 * time.Second)
		k.checkpoint(active)
		k.pause(100 * time.Millisecond)
		k.start(standby)
		k.pause(100 * time.Millisecond)
		k.kill("", standby)
		k.start(standby)
	case dice < 92:
		// The one that took over alone is killed in turn, before or while the other one catches up: only it may become
		// active again.
		k.kill("active, then its successor", active)
		acked(t, k.w, ackBound)
		k.start(active)
		k.pause(300 * time.Millisecond)
		k.kill("", standby)
		k.pause(100 * time.Millisecond)
		k.start(standby)
		acked(t, k.w, bound)
	default:
		first, second := active, standby
		if k.rng.IntN(2) == 0 {
			first, second = second, first
		}
		k.kill("both", first)
		k.pause(20 * time.Millisecond)
		k.kill("", second)
		k.start(first)
		k.pause(50 * time.Millisecond)
		k.start(second)
		acked(t, k.w, bound)
	}
}

func (k *killer) kill(what string, n *cluster.Node) {
	k.t.Helper()
	if what != "" {
		if k.counts == nil {
			k.counts = map[string]int{}
		}
		k.counts[what]++
	}
	k.w.History().Note("kill %s (%s)", n.Name, what)
	require.NoError(k.t, n.Kill())
	k.w.History().Note("killed %s", n.Name)
}

func (k *killer) start(n *cluster.Node) {
	k.t.Helper()
	k.w.History().Note("start %s", n.Name)
	require.NoError(k.t, n.Start())
}

// checkpoint asks for one and does not wait for it: what follows hits it.
func (k *killer) checkpoint(n *cluster.Node) {
	k.w.History().Note("checkpoint on %s", n.Name)
	ctx := k.t.Context()
	k.asked.Go(func() {
		// killed on the way, more often than not
		_, _ = pb.NewAdminServiceClient(n.Conn()).Checkpoint(ctx, &pb.CheckpointRequest{})
	})
}

// pause lets a random time pass: not to wait for something, but to hit another moment.
func (k *killer) pause(atMost time.Duration) {
	<-time.After(time.Duration(k.rng.Int64N(int64(atMost))))
}

func (k *killer) summary() {
	k.t.Logf("killed: %v", k.counts)
	if n := len(k.failover); n > 0 {
		slices.Sort(k.failover)
		k.t.Logf("kill of the active to the next acknowledged publish: median %v, maximum %v over %d kills",
			k.failover[n/2].Round(100*time.Microsecond), k.failover[n-1].Round(100*time.Microsecond), n)
	}
}
