// SPDX-License-Identifier: Apache-2.0

//go:build deep

package etcd_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// An endpoint that accepts connections or requests without responding delays a swap only slightly, because another
// endpoint is used.
func TestBlackholedEndpoint(t *testing.T) {
	s := start(t)
	hole, err := cluster.NewProxy(s.etcd.Address())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, hole.Close()) })
	hole.Cut() // from the beginning: the connection is never established
	c := open(t, etcd.Options{Endpoints: []string{hole.Address(), s.etcd.Address()}})
	began := time.Now()
	rec := coordtest.SampleRecord("first")
	rev, err := c.Swap(t.Context(), 0, rec)
	require.NoError(t, err)
	t.Logf("first swap with a silent first endpoint: %v", time.Since(began).Round(time.Millisecond))

	// Both connections are established, and then one of them breaks. Keep-alive pings detect it only after some seconds;
	// until then, every second request would hang.
	hole.Reset()
	hole.Heal()
	other, err := cluster.NewProxy(s.etcd.Address())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	both := etcd.Options{Endpoints: []string{hole.Address(), other.Address()}}
	c, watcher := open(t, both), open(t, both)
	announce(t, c, sampleLive("a"))
	for _, c := range []*etcd.Coordinator{c, watcher} {
		for _, cut := range []*cluster.Proxy{other, hole} { // each connection works alone
			cut.Cut()
			require.NoError(t, c.Ping(t.Context()))
			cut.Heal()
		}
	}
	coordtest.Await(t, watcher, "the liveness key", func(o failover.Observation) bool { return len(o.Live) == 1 })
	hole.Cut()
	worst := time.Duration(0)
	for i := range 20 {
		began = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // failover.Settings.CoordinatorTimeout
		next := rec.Clone()
		next.Config++
		next.OpID = fmt.Sprint("swap ", i)
		rev, err = c.Swap(ctx, rev, next)
		cancel()
		require.NoError(t, err)
		worst = max(worst, time.Since(began))
		rec = next
	}
	t.Logf("worst of 20 swaps while one of two endpoints is silent: %v", worst.Round(time.Millisecond))
	require.Less(t, worst, time.Second, "a swap waited for the silent endpoint")
	began = time.Now()
	coordtest.Await(t, watcher, "the last change",
		func(o failover.Observation) bool { return o.Record != nil && o.Record.OpID == rec.OpID && o.Reachable })
	t.Logf("the watch reported the last change after another %v", time.Since(began).Round(time.Millisecond))
	until := coordtest.Await(t, c, "the lease", func(failover.Observation) bool { return true }).LeaseUntil
	coordtest.Await(t, c, "renewed lease", func(o failover.Observation) bool { return o.LeaseUntil.After(until) })
}
