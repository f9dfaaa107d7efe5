// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// image stops etcd, copies its data directory, restarts it, and returns the copy.
func (s *server) image(t *testing.T) string {
	t.Helper()
	address := s.etcd.Address()
	s.stop(t)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(s.dir)))
	s.run(t, address)
	return dir
}

// rollBack stops etcd, restores its data directory from an image, and restarts it.
func (s *server) rollBack(t *testing.T, image string) {
	t.Helper()
	address := s.etcd.Address()
	s.stop(t)
	require.NoError(t, os.RemoveAll(s.dir))
	require.NoError(t, os.CopyFS(s.dir, os.DirFS(image)))
	s.run(t, address)
}

// If etcd is restored to an older state while a connection is open, the connection reports the restored state.
// Revisions are assigned a second time, and a lost mark is written again. (The node rejects a record older than its
// own: INV-9.)
func TestEtcdRolledBackWhileConnected(t *testing.T) {
	t.Parallel()
	s := start(t)
	a := open(t, etcd.Options{
		Endpoints: s.etcd.Endpoints(), Prefix: "/p", LeaseTTL: time.Second,
		RequestTimeout: 500 * time.Millisecond,
	})
	b := open(t, etcd.Options{
		Endpoints: s.etcd.Endpoints(), Prefix: "/p", LeaseTTL: time.Second,
		RequestTimeout: 500 * time.Millisecond,
	})
	live := sampleLive("a")
	announce(t, a, live)
	old := coordtest.SampleRecord("old")
	rev, err := a.Swap(t.Context(), 0, old)
	require.NoError(t, err)
	_, err = a.WriteMark(t.Context(), failover.Mark{By: 1, Term: 1, LSN: 5})
	require.NoError(t, err)
	image := s.image(t)

	rec := old
	for i := range 20 {
		rec, rev = swap(t, a, rec, rev, fmt.Sprint("new", i))
	}
	_, err = a.WriteMark(t.Context(), failover.Mark{By: 1, Term: 1, LSN: 50})
	require.NoError(t, err)
	for _, c := range []*etcd.Coordinator{a, b} {
		coordtest.Await(t, c, "the newest record", func(o failover.Observation) bool {
			return o.Record != nil &&
				o.Record.OpID == rec.OpID
		})
	}

	s.rollBack(t, image)
	for _, c := range []*etcd.Coordinator{a, b} {
		o := coordtest.Await(t, c, "the restored record",
			func(o failover.Observation) bool { return o.Record != nil && o.Record.OpID == "old" && o.Reachable })
		require.Less(t, o.Revision, rev)
	}
	coordtest.Await(t, b, "the liveness key", func(o failover.Observation) bool {
		return len(o.Live) == 1 && o.Live[0] == live
	})
	got, at, err := b.Load(t.Context())
	require.NoError(t, err)
	require.Equal(t, old, got)
	mark, err := b.LoadMark(t.Context())
	require.NoError(t, err)
	require.Equal(t, failover.Mark{By: 1, Term: 1, LSN: 5}, mark)
	// The active continues, and writes marks for its further commits.
	_, err = a.WriteMark(t.Context(), failover.Mark{By: 1, Term: 1, LSN: 51})
	require.NoError(t, err)
	mark, err = b.LoadMark(t.Context())
	require.NoError(t, err)
	require.Equal(t, failover.Mark{By: 1, Term: 1, LSN: 51}, mark)
	// A connection that wrote a higher mark before the rollback can write a lower one afterwards.
	s.rollBack(t, image)
	require.Eventually(t, func() bool {
		_, err := a.WriteMark(t.Context(), failover.Mark{By: 1, Term: 1, LSN: 40})
		return err == nil
	}, bound, 10*time.Millisecond)
	mark, err = b.LoadMark(t.Context())
	require.NoError(t, err)
	require.Equal(t, failover.Mark{By: 1, Term: 1, LSN: 40}, mark)

	// A swap with the old revision is rejected until that revision is assigned again.
	lost := rec
	lost.Config, lost.OpID = rec.Config+1, "lost"
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	_, err = coordtest.Swap(ctx, b, rev, lost)
	require.ErrorIs(t, err, failover.ErrConflict)
	next := got
	next.Config, next.OpID = got.Config+1, "adopted"
	_, err = b.Swap(t.Context(), at, next)
	require.NoError(t, err)
	for _, c := range []*etcd.Coordinator{a, b} {
		coordtest.Await(t, c, "the next update", func(o failover.Observation) bool {
			return o.Record != nil &&
				o.Record.OpID == "adopted"
		})
	}
}

// The connection breaks before etcd is restored, as in a machine failure, and the restored state is reported. A watch
// of the client library would resume from a revision that the restored etcd reaches only later.
func TestEtcdRolledBackWithBrokenWatch(t *testing.T) {
	s := start(t)
	link, err := cluster.NewProxy(s.etcd.Address())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, link.Close()) })
	a := open(t, etcd.Options{Endpoints: s.etcd.Endpoints(), Prefix: "/p"})
	b := open(t, etcd.Options{Endpoints: []string{link.Address()}, Prefix: "/p", RequestTimeout: 2 * time.Second})
	rec := coordtest.SampleRecord("old")
	rev, err := a.Swap(t.Context(), 0, rec)
	require.NoError(t, err)
	image := s.image(t)
	for i := range 20 {
		rec, rev = swap(t, a, rec, rev, fmt.Sprint("new", i))
	}
	coordtest.Await(t, b, "the newest record", func(o failover.Observation) bool {
		return o.Record != nil &&
			o.Record.OpID == rec.OpID
	})
	link.Cut()
	link.Reset()
	s.rollBack(t, image)
	link.Heal()
	coordtest.Await(t, b, "the restored record",
		func(o failover.Observation) bool { return o.Record != nil && o.Record.OpID == "old" })
}
