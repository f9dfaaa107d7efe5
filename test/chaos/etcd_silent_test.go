// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// A failover uses the second etcd endpoint while the first endpoint accepts connections and requests, but never
// responds. The test logs the failover time with one and with two healthy endpoints.
func TestFailoverWithSilentEtcdEndpoint(t *testing.T) {
	const rounds = 4
	etcd, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), UnsafeNoFsync: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	proxy, err := cluster.NewProxy(etcd.Address())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, proxy.Close()) })
	p := start(t, cluster.Options{Settings: map[string]string{"coordinator.etcd.endpoints": proxy.Address() + "," +
		etcd.Address()}})
	w := work(t, p, cluster.WorkloadOptions{Prefix: "silent-", Seed: 1})
	failover := func() time.Duration {
		active, _ := inSync(t, p)
		acked(t, w)
		since := w.History().Now()
		require.NoError(t, active.Kill())
		took := ackedSince(t, w, since, active)
		require.NoError(t, active.Start())
		return took
	}
	var well, silent []time.Duration
	for range rounds {
		well = append(well, failover())
		inSync(t, p)
		proxy.Cut()
		silent = append(silent, failover())
		inSync(t, p) // a node can start while the endpoint is silent
		proxy.Reset()
		proxy.Heal()
	}
	verify(t, p, w)
	slices.Sort(well)
	slices.Sort(silent)
	t.Logf("kill to next acknowledgement: both endpoints healthy %v; one unresponsive %v", well, silent)
}
