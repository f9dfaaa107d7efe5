// SPDX-License-Identifier: Apache-2.0

//go:build measure

package node_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const measuredQueues = 100_000

// TestFleetOf100000Queues measures clients and nodes of a fleet with 100,000 queues in the directory: the start of a
// client up to its first response, the lookup of a queue of another pair, the first request for such a queue, and the
// start of a node up to a complete copy of the directory.
func TestFleetOf100000Queues(t *testing.T) {
	f := startMoveFleet(t)
	require.NoError(t, f.create("a.own", admin.CreateQueueOptions{}))
	require.NoError(t, f.create("b.own", admin.CreateQueueOptions{}))
	began := time.Now()
	f.fillDirectory(measuredQueues)
	t.Logf("wrote %d entries in %v", measuredQueues, time.Since(began).Round(time.Millisecond))
	f.complete(f.a)
	f.complete(f.b)

	lookups := f.measure(5000, func(i int) {
		require.NotNil(t, notOwner(get(f.a, fmt.Sprintf("tenant-%d/orders", i*17%measuredQueues))))
	})
	starts := f.measure(20, func(int) {
		c, err := client.OpenWith(t.Context(), client.Options{Addresses: []string{f.a.ready.Address}})
		require.NoError(t, err)
		_, err = admin.New(c).GetQueue(t.Context(), "a.own")
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
	first := f.measure(20, func(int) {
		c, err := client.OpenWith(t.Context(), client.Options{Addresses: []string{f.a.ready.Address}})
		require.NoError(t, err)
		_, err = c.Publish(t.Context(), "b.own", message("x"))
		require.NoError(t, err)
		require.NoError(t, c.Close())
	})
	nodes := f.measure(3, func(int) {
		f.a = f.restart(f.a)
		f.complete(f.a)
	})
	for name, d := range map[string][]time.Duration{
		"lookup of a queue of another pair (NOT_OWNER)": lookups, "start of a client, with its first response": starts,
		"start of a client, with a publish to another pair": first, "start of a node, with a complete copy": nodes,
	} {
		t.Logf("%-50s median %10v  p99 %10v  max %10v  (%d)", name, d[len(d)/2].Round(time.Microsecond),
			d[len(d)*99/100].Round(time.Microsecond), d[len(d)-1].Round(time.Microsecond), len(d))
	}
	require.Less(t, lookups[len(lookups)/2], time.Millisecond)
	require.Less(t, starts[len(starts)/2], time.Second)
}

// fillDirectory writes entries of a pair that is registered but does not run.
func (f *moveFleet) fillDirectory(n int) {
	f.t.Helper()
	const perTxn = 100
	_, err := f.records.Put(f.t.Context(), fleet.DefaultPrefix+"/pairs/c",
		`{"id":"measured","addresses":["127.0.0.1:1","127.0.0.1:2"],"state":"open"}`)
	require.NoError(f.t, err)
	for i := 0; i < n; i += perTxn {
		var ops []clientv3.Op
		for j := i; j < i+perTxn; j++ {
			key := fmt.Sprintf("%s/queues/tenant-%d/orders", fleet.DefaultPrefix, j)
			ops = append(ops, clientv3.OpPut(key, `{"pair":"c","epoch":1}`))
		}
		_, err := f.records.Txn(f.t.Context()).Then(ops...).Commit()
		require.NoError(f.t, err)
	}
}

// complete waits until a node has all entries.
func (f *moveFleet) complete(n *testNode) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		st, err := pb.NewFleetServiceClient(n.conn).GetFleet(f.t.Context(), &pb.GetFleetRequest{})
		return err == nil && st.GetDirectory().GetCurrent() && st.GetDirectory().GetQueues() >= measuredQueues
	}, testTimeout, time.Millisecond)
}

// measure returns the sorted durations of n calls.
func (f *moveFleet) measure(n int, call func(i int)) []time.Duration {
	all := make([]time.Duration, n)
	for i := range all {
		began := time.Now()
		call(i)
		all[i] = time.Since(began)
	}
	slices.Sort(all)
	return all
}
