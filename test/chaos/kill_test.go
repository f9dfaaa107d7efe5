// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

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
	// defaultRounds and defaultTime limit a test run without a configured length.
	defaultRounds = 50
	defaultTime   = 75 * time.Second
	shortRounds   = 3
	// roundsPerHistory is the number of rounds after which everything is checked and a new history starts.
	roundsPerHistory = 10
)

// length returns the limits of the test run, in rounds and time. The run ends at the limit reached first.
func length(t *testing.T) (rounds int, limit time.Duration) {
	t.Helper()
	limit, err := cluster.FromEnv("LOCKSTEP_CHAOS", 0, time.ParseDuration)
	require.NoError(t, err)
	switch {
	case limit > 0:
		return 1 << 30, limit
	case os.Getenv("LOCKSTEP_ROUNDS") != "":
		return roundsOr(t, 0), 24 * time.Hour
	case testing.Short():
		return shortRounds, defaultTime
	}
	return defaultRounds, defaultTime
}

// roundsOr returns the configured number of rounds, or the given default.
func roundsOr(t *testing.T, otherwise int) int {
	t.Helper()
	rounds, err := cluster.FromEnv("LOCKSTEP_ROUNDS", otherwise, strconv.Atoi)
	require.NoError(t, err)
	return rounds
}

// A pair under load survives repeated random faults: killed and frozen processes, failing and stalled disks, lost
// unsynced data, clock jumps and restored directories. Some faults are injected before the pair is in sync again. No
// acknowledged message is lost, duplicated, reordered or redelivered after its confirmed acknowledgement. Both stores
// are equal at the end.
func TestChaosKill(t *testing.T) {
	t.Parallel() // mostly idle
	s := seed(t)
	rng := rand.New(rand.NewPCG(s, 1))
	settings := map[string]string{
		// Small, so that checkpoints, log trimming, snapshots and page reads occur continuously.
		"checkpoint.bytes":    "2MiB",
		"checkpoint.interval": "700ms",
		"memory.budget":       "16MiB",
		"wal.keep-bytes":      []string{"64KiB", "1MiB", "256MiB"}[rng.IntN(3)],
		"wal.segment-bytes":   "1MiB",
		"page-size":           []string{"2KiB", "8KiB"}[rng.IntN(2)],
		"disk.stall-timeout":  matrixStall,
	}
	t.Logf("settings: %v", settings)
	rounds, limit := length(t)
	k := newKiller(t, rng, cluster.Options{Settings: settings})
	k.run(s, rounds, limit)
}

type killer struct {
	t        *testing.T
	p        *cluster.Pair
	w        *cluster.Workload
	pins     *pins
	rng      *rand.Rand
	kinds    []inject
	deck     []inject // faults to inject once before the random faults
	injected tally
	asked    sync.WaitGroup // requests in flight
	// failover contains, for each kill of the active of a pair in sync, the time to the next acknowledgement.
	failover []time.Duration
}

// fullMatrix reports whether the length of the test run is configured. In this case, every kind of fault is injected,
// including clock jumps, which require a separate build. Otherwise, the seed selects faults for a minute or two.
func fullMatrix() bool {
	return os.Getenv("LOCKSTEP_CHAOS") != "" || os.Getenv("LOCKSTEP_ROUNDS") != ""
}

// newKiller starts a pair in which all disk and clock faults supported by the binary can be injected.
func newKiller(t *testing.T, rng *rand.Rand, o cluster.Options) *killer {
	t.Helper()
	o.Binary = binary
	if fullMatrix() {
		if b, err := withClocks(); err != nil {
			require.NoError(t, err)
		} else if cluster.CanSetClocks(b) {
			o.Binary, o.Clock = b, true
		}
	}
	o.Disk = cluster.CanBreakDisks(o.Binary)
	k := &killer{t: t, rng: rng, p: startWith(t, o), injected: tally{}}
	for _, x := range injections() {
		if (o.Disk || !x.disk) && (o.Clock || !x.clock) && (o.Raft || !x.raft) {
			k.kinds = append(k.kinds, x)
		}
	}
	if fullMatrix() {
		k.deck = slices.Clone(k.kinds)
	}
	rng.Shuffle(len(k.deck), func(i, j int) { k.deck[i], k.deck[j] = k.deck[j], k.deck[i] })
	return k
}

// run runs rounds until a limit is reached. With a configured length, it injects every kind of fault at least once.
func (k *killer) run(seed uint64, rounds int, limit time.Duration) {
	t := k.t
	t.Helper()
	defer func() { t.Log(k.summary()) }()
	start := time.Now()
	over := func(done int) bool {
		return (done >= rounds || time.Since(start) >= limit) && len(k.deck) == 0
	}
	for done := 0; !over(done); {
		prefix := fmt.Sprintf("round-%d-", done)
		k.w = work(t, k.p, cluster.WorkloadOptions{Prefix: prefix, Seed: seed + uint64(done), Features: true})
		k.pins = pin(t, k.w, prefix+"0", k.p.A, k.p.B)
		for range roundsPerHistory {
			k.round()
			if done++; over(done) {
				break
			}
		}
		k.asked.Wait()
		k.pins.end()
		verify(t, k.p, k.w)
		require.NoError(t, k.w.Cleanup(limited(t)))
	}
	if fullMatrix() {
		for _, x := range k.kinds {
			k.injected.require(t, x.name)
		}
	}
	checkOffline(t, k.p)
}

// round waits until the pair is in sync, continues for a random time, and injects a fault.
func (k *killer) round() {
	t := k.t
	t.Helper()
	active, standby := inSync(t, k.p)
	acked(t, k.w)
	k.pause(150 * time.Millisecond)
	if k.rng.IntN(4) == 0 {
		k.checkpoint(k.p.Nodes()[k.rng.IntN(2)])
	}
	x := k.draw()
	k.w.History().Note("%s (active: %s)", x.name, active.Name)
	x.do(k, active, standby)
	k.injected.count(x.name)
}

// draw returns the next fault of the deck or, if the deck is empty, a random fault.
func (k *killer) draw() inject {
	if len(k.deck) > 0 {
		x := k.deck[0]
		k.deck = k.deck[1:]
		return x
	}
	sum := 0
	for _, x := range k.kinds {
		sum += x.weight
	}
	rng := k.rng.IntN(sum)
	for _, x := range k.kinds {
		if rng -= x.weight; rng < 0 {
			return x
		}
	}
	return k.kinds[0]
}

func (k *killer) kill(n *cluster.Node) {
	k.t.Helper()
	k.w.History().Note("kill %s", n.Name)
	require.NoError(k.t, n.Kill())
	k.w.History().Note("killed %s", n.Name)
}

func (k *killer) start(n *cluster.Node) {
	k.t.Helper()
	k.w.History().Note("start %s", n.Name)
	require.NoError(k.t, n.Start())
}

// checkpoint requests a checkpoint without waiting for it, so that the next fault interrupts it.
func (k *killer) checkpoint(n *cluster.Node) {
	k.w.History().Note("checkpoint on %s", n.Name)
	ctx := k.t.Context()
	k.asked.Go(func() {
		// the node is usually killed before the checkpoint completes
		_, _ = pb.NewAdminServiceClient(n.Conn()).Checkpoint(ctx, &pb.CheckpointRequest{})
	})
}

// pause waits for a random time, so that faults occur at different moments.
func (k *killer) pause(atMost time.Duration) {
	<-time.After(time.Duration(k.rng.Int64N(int64(atMost))))
}

// summary returns the number of faults by kind and the failover times, for the test log.
func (k *killer) summary() string {
	text := "injected faults:\n" + k.injected.String()
	if n := len(k.failover); n > 0 {
		slices.Sort(k.failover)
		text += fmt.Sprintf("kill of the active to the next acknowledged publish: median %v, maximum %v over %d kills",
			k.failover[n/2].Round(100*time.Microsecond), k.failover[n-1].Round(100*time.Microsecond), n)
	}
	return text
}
