// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// empty restarts etcd without data.
func (s *server) empty(t *testing.T) {
	t.Helper()
	s.rollBack(t, t.TempDir())
}

// If etcd's data is replaced by an older copy or deleted while the connection is broken, the current state and later
// changes are reported after the reconnect. RequestTimeout is long, so that the test does not depend on it.
func TestEtcdReplacedWhileDisconnected(t *testing.T) {
	t.Parallel()
	type fits = func(failover.Observation) bool
	for name, replace := range map[string]func(t *testing.T, s *server, image string) fits{
		"restored": func(t *testing.T, s *server, image string) fits {
			s.rollBack(t, image)
			return func(o failover.Observation) bool { return o.Record != nil && o.Record.OpID == "old" }
		},
		"emptied": func(t *testing.T, s *server, _ string) fits {
			s.empty(t)
			return func(o failover.Observation) bool { return o.Missing && o.Record == nil && len(o.Live) == 0 }
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t)
			link, err := cluster.NewProxy(s.etcd.Address())
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, link.Close()) })
			a := open(t, etcd.Options{Endpoints: s.etcd.Endpoints(), Prefix: "/p"})
			b := open(t, etcd.Options{Endpoints: []string{link.Address()}, Prefix: "/p", RequestTimeout: 10 * time.Minute})
			rec := coordtest.SampleRecord("old")
			rev, err := a.Swap(t.Context(), 0, rec)
			require.NoError(t, err)
			image := s.image(t)
			for i := range 20 {
				rec, rev = swap(t, a, rec, rev, fmt.Sprint("new", i))
			}
			coordtest.Await(t, b, "the newest record", func(o failover.Observation) bool {
				return o.Record != nil && o.Record.OpID == rec.OpID
			})
			link.Cut()
			link.Reset()
			fits := replace(t, s, image)
			link.Heal()
			coordtest.Await(t, b, "the current value", fits)

			// Write a record at a revision that was already assigned before.
			now, at, err := a.Load(t.Context())
			if err != nil {
				require.ErrorIs(t, err, failover.ErrNoRecord)
				now = coordtest.SampleRecord("")
			}
			now.Config, now.OpID = now.Config+1, "next"
			at, err = a.Swap(t.Context(), at, now)
			require.NoError(t, err)
			require.Less(t, at, rev)
			coordtest.Await(t, b, "the next record", func(o failover.Observation) bool {
				return o.Record != nil && o.Record.OpID == "next"
			})
		})
	}
}

// After etcd was emptied, an announced process becomes visible again, and a process started later is also visible.
func TestAnnouncementAfterEtcdEmptied(t *testing.T) {
	s := start(t)
	a := open(t, etcd.Options{Endpoints: s.etcd.Endpoints(), Prefix: "/p", LeaseTTL: time.Second})
	b := open(t, etcd.Options{Endpoints: s.etcd.Endpoints(), Prefix: "/p", LeaseTTL: time.Second})
	live := sampleLive("a")
	announce(t, a, live)
	for _, c := range []*etcd.Coordinator{a, b} {
		coordtest.Await(t, c, "the process", func(o failover.Observation) bool {
			return len(o.Live) == 1 && o.Live[0] == live
		})
	}
	s.empty(t)
	other := sampleLive("b")
	announce(t, b, other)
	for _, c := range []*etcd.Coordinator{a, b} {
		coordtest.Await(t, c, "both processes", func(o failover.Observation) bool { return len(o.Live) == 2 })
	}
}
