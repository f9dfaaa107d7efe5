// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
)

// fill returns a directory with a copy of n queues.
func fill(b testing.TB, n int) (*Directory, *contents) {
	b.Helper()
	c := newContents("/test/")
	c.put("/test/fleet", []byte(encode(fleetValue{ID: "f"})))
	c.put("/test/pairs/a", []byte(encode(Member{ID: "a", State: StateOpen, Addresses: []string{"a:1", "b:1"}})))
	for i := range n {
		c.put(fmt.Sprintf("/test/queues/tenant-%d/orders", i), []byte(encode(entryValue{Pair: "a", Epoch: uint64(i + 1)})))
	}
	d, err := New(Options{
		Client: new(clientv3.Client), Pair: "a", PairID: "a", Prefix: "/test",
		State: func() PairState { return PairState{FleetID: "f", Term: 1} },
	})
	require.NoError(b, err)
	d.copy, d.current = c, true
	return d, c
}

func TestOwnerAllocatesNothing(t *testing.T) {
	d, _ := fill(t, 1000)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if o, found, err := d.Owner("tenant-500/orders"); err != nil || !found || len(o.Addresses) != 2 {
			t.Error("not found")
		}
	}))
}

func BenchmarkOwner(b *testing.B) {
	d, _ := fill(b, 100_000)
	b.ReportAllocs()
	for b.Loop() {
		if _, found, _ := d.Owner("tenant-50000/orders"); !found {
			b.Fatal("not found")
		}
	}
}

// BenchmarkQueues lists pages of 1,000 of 100,000 queues: without changes, and with the creation of a queue before each
// page.
func BenchmarkQueues(b *testing.B) {
	for name, changed := range map[string]bool{"unchanged": false, "changed": true} {
		b.Run(name, func(b *testing.B) {
			d, c := fill(b, 100_000)
			created := 0
			for b.Loop() {
				if changed {
					created++
					key := fmt.Sprintf("/test/queues/new-%d", created)
					d.update(func() { c.put(key, []byte(encode(entryValue{Pair: "a", Epoch: 1}))) })
				}
				if page := d.Queues("tenant-50000/orders", 1000); len(page) != 1000 {
					b.Fatal("incomplete page")
				}
			}
		})
	}
}

// The pages of a list contain each queue once, also after changes of the copy.
func TestQueuesArePaged(t *testing.T) {
	d, c := fill(t, 250)
	list := func() (names []string) {
		for after := ""; ; after = names[len(names)-1] {
			page := d.Queues(after, 100)
			for _, p := range page {
				names = append(names, p.Queue)
			}
			if len(page) < 100 {
				return names
			}
		}
	}
	require.Len(t, list(), 250)
	require.IsIncreasing(t, list())
	d.update(func() {
		c.put("/test/queues/a", []byte(encode(entryValue{Pair: "b", Epoch: 7, Group: "g"})))
		c.remove("/test/queues/tenant-0/orders")
	})
	names := list()
	require.Len(t, names, 250)
	require.Equal(t, "a", names[0])
	require.NotContains(t, names, "tenant-0/orders")
	d.update(func() { c.put("/test/queues/a", []byte(encode(entryValue{Pair: "a", Epoch: 8}))) })
	require.Equal(t, []Placement{{Queue: "a", Pair: "a", Epoch: 8}}, d.Queues("", 1))
	require.Empty(t, d.Queues("zzz", 10))
	p, found := d.Placement("a")
	require.True(t, found)
	require.Equal(t, Placement{Queue: "a", Pair: "a", Epoch: 8}, p)
	_, found = d.Placement("b")
	require.False(t, found)
}

// BenchmarkDecode decodes 100,000 entries.
func BenchmarkDecode(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		fill(b, 100_000)
	}
}

// BenchmarkLoad loads 100,000 queues from an embedded etcd.
func BenchmarkLoad(b *testing.B) {
	d := benchmarkDirectory(b, 100_000)
	b.ReportAllocs()
	for b.Loop() {
		c, _, err := d.load(b.Context())
		require.NoError(b, err)
		require.Len(b, c.queues, 100_000)
	}
}

// benchmarkDirectory returns the directory of a fleet with n queues in an embedded etcd.
func benchmarkDirectory(b *testing.B, n int) *Directory {
	b.Helper()
	s, err := embedded.Start(b.Context(), embedded.Options{Dir: b.TempDir(), UnsafeNoFsync: true})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	client, err := clientv3.New(clientv3.Config{Endpoints: s.Endpoints()})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, client.Close()) })
	d, err := New(Options{
		Client: client, Pair: "a", PairID: "a", RequestTimeout: time.Minute,
		State: func() PairState { return PairState{Term: 1} },
	})
	require.NoError(b, err)
	began := time.Now()
	_, report, err := d.Join(b.Context(), Member{}, func(context.Context) (iter.Seq2[string, uint64], error) {
		return func(yield func(string, uint64) bool) {
			for i := range n {
				if !yield(fmt.Sprintf("tenant-%d/orders", i), 0) {
					return
				}
			}
		}, nil
	})
	require.NoError(b, err)
	require.Equal(b, n, report.Added)
	b.Logf("joined with %d queues in %v", n, time.Since(began))
	return d
}
