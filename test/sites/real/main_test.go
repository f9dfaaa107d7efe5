// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

// Package real runs two sites as processes: a pair with an etcd at each site, and a slow link between the sites (20 ms
// in each direction, 20 MB/s). The tests switch and promote sites under load, kill nodes, and compare the responses
// with the stored messages. They run a few rounds by default:
//
//	LOCKSTEP_ROUNDS=100   run this number of rounds
//	LOCKSTEP_SEED=…       use the random seed of an earlier run
//	LOCKSTEP_PYTHON=…     Python interpreter with grpcio, for the Python client (default: python3, if it has grpcio)
//	LOCKSTEP_KEEP=dir     directory for logs and data of failed tests (default: a new directory in $TMPDIR)
package real

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/cluster"
)

// bound limits each wait. It is not a performance goal.
const bound = 3 * time.Minute

// interval is the interval of polling.
const interval = 10 * time.Millisecond

var binary string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "lockstep-binary-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if binary, err = cluster.Build(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// random returns a generator, and logs its seed.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	seed := rand.Uint64() >> 32
	if text := os.Getenv("LOCKSTEP_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "LOCKSTEP_SEED")
	}
	t.Logf("LOCKSTEP_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 42))
}

// rounds returns the number of rounds of a test.
func rounds(t *testing.T, standard, short int) int {
	t.Helper()
	if text := os.Getenv("LOCKSTEP_ROUNDS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err, "LOCKSTEP_ROUNDS")
		return n
	}
	if testing.Short() {
		return short
	}
	return standard
}

// limited returns a context with the timeout bound.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	t.Cleanup(cancel)
	return ctx
}

// eventually waits until holds returns true.
func eventually(t *testing.T, what string, holds func(ctx context.Context) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for !holds(ctx) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			require.FailNow(t, "not reached: "+what)
		}
	}
}

// waitFor waits until all goroutines of a group have returned.
func waitFor(t *testing.T, group *sync.WaitGroup, what string) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		group.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-limited(t).Done():
		require.FailNow(t, "not reached: "+what)
	}
}

// pass waits for a duration, as a phase of the load.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}
