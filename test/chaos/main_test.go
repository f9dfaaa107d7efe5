// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

// Package chaos injects faults into real pairs of nodes. A client records its history, and a checker verifies every
// response in it (see test/cluster and test/harness/historycheck). The tests are short by default, and run longer
// with
//
//	LOCKSTEP_CHAOS=30m    kill nodes for this duration
//	LOCKSTEP_ROUNDS=500   or for this number of rounds
//	LOCKSTEP_SEED=…       use the random seed of an earlier run
//	LOCKSTEP_KEEP=dir     directory for histories, logs and data of failed tests (default: a new directory in
//	                      $TMPDIR, which is logged)
package chaos

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// bound limits each wait. It is not a performance goal: a test that exceeds it waits for an event that does not
// occur.
const bound = 3 * time.Minute

// Binaries and state, created once for all tests of the process.
var (
	binary     string
	binaryDir  string
	withClocks = sync.OnceValues(func() (string, error) {
		return cluster.BuildWithClock(context.Background(), binaryDir)
	})
	etcdWithClock = sync.OnceValues(func() (string, error) {
		return cluster.BuildEtcdWithClock(context.Background(), binaryDir)
	})
)

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
	binaryDir = dir
	if binary, err = cluster.Build(context.Background(), dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := manyAtOnce(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// pairsAtOnce is the number of mostly idle tests that run in parallel. A pair under test load uses about a sixth of a
// CPU.
const pairsAtOnce = 6

// manyAtOnce sets the number of parallel tests if -parallel is not given.
func manyAtOnce() error {
	flag.Parse()
	logged := false
	flag.Visit(func(f *flag.Flag) { logged = logged || f.Name == "test.parallel" })
	if logged {
		return nil
	}
	return flag.Set("test.parallel", strconv.Itoa(pairsAtOnce))
}

// seed returns the random seed of this run.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := rand.Uint64() >> 32
	if text := os.Getenv("LOCKSTEP_SEED"); text != "" {
		var err error
		s, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err, "LOCKSTEP_SEED")
	}
	t.Logf("LOCKSTEP_SEED=%d", s)
	return s
}

// start starts a pair, and waits until it is in sync. If the test fails, the pair's directory is kept and logged;
// otherwise it is removed.
func start(t *testing.T, o cluster.Options) *cluster.Pair {
	t.Helper()
	o.Binary = binary
	return startWith(t, o)
}

// clockBinary returns a binary with an adjustable clock. If none is available, the test is skipped or fails.
func clockBinary(t *testing.T) string {
	t.Helper()
	b, err := withClocks()
	require.NoError(t, err)
	if !cluster.CanSetClocks(b) {
		missingFeature(t, needsFaultclock, "LOCKSTEP_BINARY was not built as cluster.BuildWithClock does")
	}
	return b
}

// startWith is like start, but uses the binary in o.
func startWith(t *testing.T, o cluster.Options) *cluster.Pair {
	t.Helper()
	parent := os.Getenv("LOCKSTEP_KEEP")
	if parent != "" {
		require.NoError(t, os.MkdirAll(parent, 0o755))
	}
	dir, err := os.MkdirTemp(parent, "lockstep-"+strings.ReplaceAll(t.Name(), "/", "-")+"-")
	require.NoError(t, err)
	o.Dir = dir
	p, err := cluster.Start(t.Context(), o)
	require.NoError(t, err, "see %s", dir)
	t.Cleanup(func() {
		for _, n := range p.Nodes() {
			if t.Failed() && n.Running() {
				_ = n.Dump()
			}
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("kept: %s (a/node.log, b/node.log, history/*.jsonl)", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	inSync(t, p)
	return p
}

// steady returns settings with which a slow node is not treated as failed, for tests that automatic role changes
// would disturb. A killed process or a lost disk is still detected immediately.
func steady() map[string]string {
	return map[string]string{"failover.timeout": "10s", "failover.drop-timeout": "8s"}
}

// dropsFirst returns settings with which the active drops a silent standby long before the standby would take over,
// even on a busy machine.
func dropsFirst() map[string]string {
	return map[string]string{"failover.timeout": "20s", "failover.drop-timeout": "600ms"}
}

// handOver retries a switchover until it succeeds. On a busy machine, the standby may be briefly out of sync, and the
// request is rejected.
func handOver(t *testing.T, p *cluster.Pair) {
	t.Helper()
	for start := time.Now(); ; {
		active, _ := inSync(t, p)
		_, err := pb.NewAdminServiceClient(active.Conn()).Switchover(limited(t), &pb.SwitchoverRequest{})
		if err == nil {
			return
		}
		require.Contains(t, []codes.Code{codes.FailedPrecondition, codes.Unavailable}, status.Code(err), "%v", err)
		require.Less(t, time.Since(start), bound, "no switchover succeeds: %v", err)
	}
}

// limited returns a context with the timeout bound.
func limited(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	t.Cleanup(cancel)
	return ctx
}

func inSync(t *testing.T, p *cluster.Pair) (active, standby *cluster.Node) {
	t.Helper()
	active, standby, err := p.WaitInSync(limited(t))
	require.NoError(t, err, "see %s", filepath.Dir(p.A.Dir))
	return active, standby
}

// work starts a workload that ends with the test.
func work(t *testing.T, p *cluster.Pair, o cluster.WorkloadOptions) *cluster.Workload {
	t.Helper()
	w, err := cluster.StartWorkload(limited(t), p, o)
	require.NoError(t, err)
	t.Cleanup(w.Abort)
	return w
}

// acked waits for an acknowledgement received after the call.
func acked(t *testing.T, w *cluster.Workload) {
	t.Helper()
	ackedSince(t, w, w.History().Now(), nil)
}

// ackedSince waits for an acknowledgement received after a time of the history, from a node other than notBy (nil:
// any), and returns the time between the two.
func ackedSince(t *testing.T, w *cluster.Workload, since time.Duration, notBy *cluster.Node) time.Duration {
	t.Helper()
	address := "none"
	if notBy != nil {
		address = notBy.Address
	}
	var at time.Duration
	require.Eventually(t, func() bool {
		var ok bool
		at, ok = w.History().AckedAfter(since, address)
		return ok
	}, bound, 2*time.Millisecond, "no publish was acknowledged within %v", bound)
	return at - since
}

// verify ends the workload, and reports all violations found by the checker as test failures. The pair must be able
// to serve.
func verify(t *testing.T, p *cluster.Pair, w *cluster.Workload) {
	t.Helper()
	inSync(t, p)
	// The duration of the clients' pending operations depends on the speed of the disk.
	ctx, cancel := context.WithTimeout(t.Context(), 5*bound)
	defer cancel()
	err := w.Finish(ctx)
	violations := w.History().Check()
	if err != nil || len(violations) > 0 {
		dir := filepath.Join(filepath.Dir(p.A.Dir), "history")
		require.NoError(t, w.History().Save(dir))
		t.Logf("history: %s", dir)
	}
	require.NoError(t, err)
	for i, v := range violations {
		if i == 20 {
			t.Errorf("%d more violations", len(violations)-i)
			break
		}
		t.Error(v)
	}
	if len(violations) > 0 {
		t.FailNow()
	}
	t.Log(w.History().Counts())
}
