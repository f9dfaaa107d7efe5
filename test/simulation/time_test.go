// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/tier"
)

// The other node acknowledges a publish within a limit after the loss of the active. The clock is simulated and a
// message takes at most 0.3 ms, so the time depends only on the timeouts of nodes and client. The loss of a process is
// detected by its connections, the loss of a host by failover.timeout, which is 2 s by default.
func TestFailoverTime(t *testing.T) {
	for _, c := range []struct {
		name        string
		power       bool
		least, most time.Duration
	}{
		{"kill", false, 0, 10 * time.Millisecond},
		{"power loss", true, 2 * time.Second, 2100 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			for seed := uint64(1); seed <= uint64(tier.Count(2, 5)); seed++ {
				var took time.Duration
				var err error
				synctest.Test(t, func(t *testing.T) {
					w, werr := newWorld(seed, zap.NewNop())
					require.NoError(t, werr)
					w.options.Sync, w.options.MinInSync, w.options.PerSecond = always, 1, 500
					took, err = w.failover(c.power)
				})
				require.NoError(t, err, "seed %d", seed)
				t.Logf("seed %d: %v", seed, took)
				require.GreaterOrEqual(t, took, c.least, "seed %d: the takeover was too early", seed)
				require.LessOrEqual(t, took, c.most, "seed %d", seed)
			}
		})
	}
}

// failover kills the active of a pair in sync, and measures the time until the other node acknowledges a publish.
func (w *world) failover(power bool) (took time.Duration, err error) {
	for _, h := range w.hosts {
		h.start()
	}
	defer func() { err = errors.Join(err, w.end()) }()
	ctx, cancel := context.WithTimeout(context.Background(), recoveryLimit)
	defer cancel()
	load, err := cluster.StartWorkload(ctx, w, cluster.WorkloadOptions{
		Seed: w.seed, PerSecond: w.options.PerSecond, OperationsPerSecond: -1, SideClientsPerSecond: -1,
	})
	if err != nil {
		return 0, err
	}
	defer load.Abort()
	if err := w.waitInSync(ctx); err != nil {
		return 0, err
	}
	sleep(ctx, time.Second) // until all connections are established
	active := w.find(ctx, activeNode)[0]
	since := load.History().Now()
	if !active.kill(power) {
		return 0, errors.New("the active was not running")
	}
	for ctx.Err() == nil {
		if at, ok := load.History().AckedAfter(since, active.address); ok {
			return at - since, nil
		}
		sleep(ctx, time.Millisecond)
	}
	return 0, errors.New("the other node does not acknowledge")
}
