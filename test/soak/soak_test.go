// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package soak

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness"
)

const (
	bound = 60 * time.Second
	// defaultTime is long enough to kill each node once, which checks the test itself.
	defaultTime = 6 * time.Second
	// flatFrom is the duration from which growth is checked. A shorter test includes the first checkpoints and the
	// filling of caches.
	flatFrom = 30 * time.Minute
	// maxGrowth is the largest accepted ratio of the last quarter to the second quarter.
	maxGrowth = 1.25
	// minGrowthBytes and minGrowthCount are the smallest differences that count as growth.
	minGrowthBytes, minGrowthCount = 16 << 20, 16
)

// No quantity grows in a pair with etcd, and in a pair with a witness, under the load of a cluster.Workload with
// applications. LOCKSTEP_SOAK is the duration of the test (default 6s). The test kills or stops a node every
// LOCKSTEP_SOAK_KILLS (default 3m, or a third of the test). After every two kills, it checks all responses to clients.
// It writes the samples to soak-*.csv in LOCKSTEP_KEEP, and a table of the quarters to the log. LOCKSTEP_SOAK_RATE is
// the rate of each of three producers in messages per second (default 60).
func TestSoak(t *testing.T) {
	binary, err := cluster.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	for _, coordinator := range []string{"etcd", "raft"} {
		t.Run(coordinator, func(t *testing.T) {
			t.Parallel()
			soak(t, binary, coordinator)
		})
	}
}

func setting[T any](t *testing.T, name string, otherwise T, parse func(string) (T, error)) T {
	t.Helper()
	v, err := cluster.FromEnv(name, otherwise, parse)
	require.NoError(t, err)
	return v
}

func soak(t *testing.T, binary, coordinator string) {
	t.Helper()
	length := setting(t, "LOCKSTEP_SOAK", defaultTime, time.ParseDuration)
	every := setting(t, "LOCKSTEP_SOAK_KILLS", min(3*time.Minute, length/3), time.ParseDuration)
	dir := os.Getenv("LOCKSTEP_KEEP")
	if dir == "" {
		dir = t.TempDir()
	}
	s := &run{
		t: t, every: every, rate: setting(t, "LOCKSTEP_SOAK_RATE", 60, strconv.Atoi),
		rng: rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1)),
	}
	s.start(binary, coordinator)
	s.sampler = newSampler(t, s.p, s.metrics, filepath.Join(dir, "soak-"+coordinator+".csv"))
	for n := 0; time.Since(s.sampler.began) < length; n++ {
		s.history(n)
	}
	t.Logf("%s: %d kills and stops, all responses to clients were correct\n%s", coordinator, s.kills, s.sampler.table())
	s.requireFlat(length)
}

// run is the test of one pair.
type run struct {
	t       *testing.T
	p       *cluster.Pair
	rng     *rand.Rand
	metrics map[string]string
	sampler *sampler
	every   time.Duration
	rate    int // messages per second of each producer
	kills   int
}

func (s *run) start(binary, coordinator string) {
	s.t.Helper()
	dir, err := os.MkdirTemp("", "lockstep-soak-")
	require.NoError(s.t, err)
	s.metrics = map[string]string{"a": reserved(s.t), "b": reserved(s.t)}
	s.p, err = cluster.Start(s.t.Context(), cluster.Options{
		Binary: binary, Dir: dir, Raft: coordinator == "raft",
		Settings: map[string]string{
			"checkpoint.bytes": "16MiB", "checkpoint.interval": "5s", "memory.budget": "64MiB", "log.level": "info",
			"wal.keep-bytes": "16MiB", // small, because the log grows until it reaches this size
		},
		NodeSettings: map[string]map[string]string{
			"a": {"metrics.listen": s.metrics["a"]}, "b": {"metrics.listen": s.metrics["b"]},
		},
	})
	require.NoError(s.t, err)
	s.t.Cleanup(func() {
		require.NoError(s.t, s.p.Close())
		if s.t.Failed() {
			s.t.Logf("kept: %s", dir)
			return
		}
		require.NoError(s.t, os.RemoveAll(dir))
	})
	s.inSync()
}

// reserved returns an unused address for the metrics of a node.
func reserved(t *testing.T) string {
	t.Helper()
	p, err := harness.ReservePort()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p.Address()
}

func (s *run) inSync() (active, standby *cluster.Node) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), bound)
	defer cancel()
	active, standby, err := s.p.WaitInSync(ctx)
	require.NoError(s.t, err)
	return active, standby
}

// history runs one workload, from the creation of its queues to their removal, with two kills, and checks its
// responses.
func (s *run) history(n int) {
	s.t.Helper()
	w, err := cluster.StartWorkload(s.t.Context(), s.p, cluster.WorkloadOptions{
		Prefix: fmt.Sprintf("soak-%d-", n), Seed: s.rng.Uint64(), LargeBytes: 1 << 20,
		PerSecond: s.rate, OperationsPerSecond: max(1, s.rate/6), SideClientsPerSecond: max(1, s.rate/6), Features: true,
	})
	require.NoError(s.t, err)
	defer w.Abort()
	for range 2 {
		s.sampleFor(s.every)
		s.kill()
	}
	s.inSync()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*bound)
	defer cancel()
	require.NoError(s.t, w.Finish(ctx))
	require.Empty(s.t, w.History().Check())
	require.NoError(s.t, w.Cleanup(ctx))
}

// sampleFor waits under load, and takes a sample every ten seconds and one at the end.
func (s *run) sampleFor(d time.Duration) {
	s.t.Helper()
	end := time.After(d)
	tick := time.NewTicker(10 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.sampler.take()
		case <-end:
			s.sampler.take()
			return
		}
	}
}

// kill ends the active or, in every second call, the standby, with SIGKILL or SIGTERM, and restarts the node.
func (s *run) kill() {
	s.t.Helper()
	active, standby := s.inSync()
	victim := active
	if s.kills%2 == 1 {
		victim = standby
	}
	end := victim.Kill
	if s.rng.IntN(4) == 0 {
		end = victim.Stop
	}
	require.NoError(s.t, end())
	s.kills++
	require.NoError(s.t, victim.Start())
	s.inSync()
}

// requireFlat fails the test if a quantity has grown.
func (s *run) requireFlat(length time.Duration) {
	s.t.Helper()
	if length < flatFrom {
		s.t.Logf("a test of less than %v does not measure growth", flatFrom)
		return
	}
	for _, name := range quantities {
		least := float64(minGrowthCount)
		if strings.HasSuffix(name, "_bytes") {
			least = minGrowthBytes
		}
		grown := s.sampler.between(name, 0.75, 1) - s.sampler.between(name, 0.25, 0.5)
		if grown > least && s.sampler.growth(name) > maxGrowth {
			s.t.Errorf("%s has grown to %.2f times its value in the second quarter", name, s.sampler.growth(name))
		}
	}
}
