// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

// Package fleet moves queues between three pairs of real processes, with an etcd process, under load. Producers and
// consumers are clients in Go and Python and AMQP clients; each kind consumes another subscription. In each round,
// processes are killed: the active, the standby or both nodes of the source or of the target, the active of the third
// pair, etcd, or the node that received the request. The move stops before a chosen step, where the kill takes place.
//
//	LOCKSTEP_MOVES=100              number of rounds (default 14)
//	LOCKSTEP_MOVE_MESSAGES=1000000  messages in each of the two queues before the first round (default 20000)
//	LOCKSTEP_SEED=…                 use the random seed of an earlier run
//	LOCKSTEP_PYTHON=…               Python interpreter with grpcio (default: python3, if it has grpcio)
//	LOCKSTEP_FLEET_PREVIOUS=…       revision, or path of a program, from which TestUpgrade upgrades
//	LOCKSTEP_DRAIN_QUEUES=2000      number of queues in TestDrain (default 200)
//	LOCKSTEP_KEEP=dir               directory for logs and data of failed tests (default: a new directory in $TMPDIR)
//
// In 106 rounds, each of the processes is killed at each step.
package fleet

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/cluster"
)

// bound limits each wait. It is not a performance goal.
const bound = 10 * time.Minute

// interval is the interval of polling.
const interval = 10 * time.Millisecond

var binary, etcdBinary string

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
	binary, err = cluster.Build(context.Background(), dir)
	etcdBinary = filepath.Join(dir, "etcd")
	build := exec.CommandContext(context.Background(), "go", "build", "-o", etcdBinary,
		"github.com/lockstep-mq/lockstep/test/cluster/etcd")
	if out, failed := build.CombinedOutput(); failed != nil {
		err = errors.Join(err, fmt.Errorf("build etcd: %w\n%s", failed, out))
	}
	if err != nil {
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
	return rand.New(rand.NewPCG(seed, 48))
}

// number returns the value of an environment variable.
func number(t *testing.T, variable string, standard, short int) int {
	t.Helper()
	if text := os.Getenv(variable); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err, variable)
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
