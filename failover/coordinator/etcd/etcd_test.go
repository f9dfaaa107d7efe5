// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"encoding/json"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// server is an embedded etcd that can be stopped and restarted on the same port.
type server struct {
	dir  string
	etcd *embedded.Server
}

func start(t *testing.T) *server {
	t.Helper()
	s := &server{dir: t.TempDir()}
	s.run(t, "")
	t.Cleanup(func() { s.stop(t) })
	return s
}

func (s *server) run(t *testing.T, address string) {
	t.Helper()
	s.etcd = coordtest.StartEtcd(t, s.dir, address)
}

func (s *server) stop(t *testing.T) {
	t.Helper()
	require.NoError(t, s.etcd.Close())
}

func (s *server) connect(t *testing.T, prefix string) *etcd.Coordinator {
	t.Helper()
	c, err := etcd.Open(etcd.Options{
		Endpoints: s.etcd.Endpoints(), Prefix: prefix, LeaseTTL: time.Second,
		RequestTimeout: 500 * time.Millisecond,
	})
	require.NoError(t, err)
	return c
}

func TestConformance(t *testing.T) {
	t.Parallel()
	s := start(t)
	n := 0
	coordtest.Run(t, func(*testing.T) coordtest.Fixture {
		n++
		prefix := "/test/" + string(rune('a'+n))
		return coordtest.Fixture{
			Connect: func(t *testing.T) failover.Coordinator { return s.connect(t, prefix) },
			Stop:    s.stop,
			Start:   func(t *testing.T) { s.run(t, s.etcd.Address()) },
		}
	})
}

// If each request is sent once, a write of the mark returns the previous mark.
func TestMarkSentOnce(t *testing.T) {
	t.Parallel()
	s := start(t)
	coordtest.RunMark(t, coordtest.Fixture{Connect: func(t *testing.T) failover.Coordinator {
		t.Helper()
		c, err := etcd.OpenOnce(etcd.Options{
			Endpoints: s.etcd.Endpoints(), Prefix: "/once", LeaseTTL: time.Minute, RequestTimeout: time.Minute,
		})
		require.NoError(t, err)
		return c
	}})
}

// A compaction ends a watch that is behind; the coordinator then lists the keys again.
func TestWatchSurvivesCompaction(t *testing.T) {
	s := start(t)
	raw, err := clientv3.New(clientv3.Config{Endpoints: s.etcd.Endpoints()})
	require.NoError(t, err)
	defer raw.Close()
	c := s.connect(t, "/p")
	defer func() { require.NoError(t, c.Close()) }()
	rec := coordtest.SampleRecord("op1")
	rev, err := c.Swap(t.Context(), 0, rec)
	require.NoError(t, err)

	addr := s.etcd.Address()
	s.stop(t) // interrupts the watch
	s.run(t, addr)
	var resp *clientv3.PutResponse
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		resp, err = raw.Put(ctx, "/other", "x")
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	_, err = raw.Compact(t.Context(), resp.Header.Revision) // compacts the resume position of the watch
	require.NoError(t, err)

	rec.Config, rec.OpID = 2, "op2"
	require.Eventually(t, func() bool {
		_, err := c.Swap(t.Context(), rev, rec)
		return err == nil
	}, time.Minute, 10*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for o := range c.Watch(ctx) {
		if o.Record != nil && o.Record.OpID == "op2" {
			return
		}
	}
	require.FailNow(t, "the change was not observed")
}

func TestUnreadableRecord(t *testing.T) {
	s := start(t)
	raw, err := clientv3.New(clientv3.Config{Endpoints: s.etcd.Endpoints()})
	require.NoError(t, err)
	defer raw.Close()
	for value, want := range map[string]error{
		`{`:             failover.ErrRecordInvalid,
		`{"version":1}`: failover.ErrRecordInvalid,
		`{"version":9}`: failover.ErrRecordVersion,
	} {
		_, err = raw.Put(t.Context(), "/p/record", value)
		require.NoError(t, err)
		c := s.connect(t, "/p/")
		_, _, err = c.Load(t.Context())
		require.ErrorIs(t, err, want, value)
		o := coordtest.Await(t, c, "that the record cannot be read",
			func(o failover.Observation) bool { return o.RecordErr != nil })
		require.ErrorIs(t, o.RecordErr, want)
		require.NoError(t, c.Close())
	}
}

func TestUnreachable(t *testing.T) {
	_, err := etcd.Open(etcd.Options{})
	require.Error(t, err)
	require.Contains(t, err.Error(), "no endpoints")

	c, err := etcd.Open(etcd.Options{Endpoints: []string{"127.0.0.1:1"}})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err = c.Ping(ctx)
	require.Error(t, err)
	require.Contains(t, err.Error(), "127.0.0.1:1")
	_, _, err = c.Load(ctx)
	require.ErrorIs(t, err, failover.ErrUnreachable)
}

func TestEmbeddedErrors(t *testing.T) {
	s := start(t)
	_, err := embedded.Start(t.Context(), embedded.Options{
		Dir: t.TempDir(), Address: s.etcd.Address(),
		UnsafeNoFsync: true,
	})
	require.Error(t, err)
	require.Contains(t, err.Error(), s.etcd.Address())
	require.Contains(t, err.Error(), syscall.EADDRINUSE.Error())
	_, err = embedded.Start(t.Context(), embedded.Options{})
	require.Error(t, err)
	require.Contains(t, err.Error(), "data directory")
}

// A mark outlives the record, and is replaced by the mark of another pair.
func TestMarkOfAnotherPair(t *testing.T) {
	s := start(t)
	raw, err := clientv3.New(clientv3.Config{Endpoints: s.etcd.Endpoints()})
	require.NoError(t, err)
	defer raw.Close()
	a, b := s.connect(t, "/p"), s.connect(t, "/p")
	defer func() { require.NoError(t, a.Close()) }()
	defer func() { require.NoError(t, b.Close()) }()
	mark := failover.Mark{Pair: uuid.New(), By: 9, Term: 8, LSN: 1000}
	_, err = a.Swap(t.Context(), 0, coordtest.SampleRecord("op1"))
	require.NoError(t, err)
	_, err = a.WriteMark(t.Context(), mark)
	require.NoError(t, err)
	_, err = raw.Delete(t.Context(), "/p/record")
	require.NoError(t, err)
	got, err := b.LoadMark(t.Context())
	require.NoError(t, err)
	require.Equal(t, mark, got)

	first := failover.Mark{Pair: uuid.New(), By: 1, Term: 1, LSN: 1}
	_, err = b.WriteMark(t.Context(), first)
	require.NoError(t, err)
	got, err = a.LoadMark(t.Context())
	require.NoError(t, err)
	require.Equal(t, first, got)

	_, err = raw.Put(t.Context(), "/p/mark", "junk")
	require.NoError(t, err)
	_, err = b.LoadMark(t.Context())
	require.ErrorIs(t, err, failover.ErrRecordInvalid)
	_, err = a.WriteMark(t.Context(), mark)
	require.ErrorIs(t, err, failover.ErrRecordInvalid)
	_, err = raw.Delete(t.Context(), "/p/mark")
	require.NoError(t, err)
	_, err = a.WriteMark(t.Context(), mark)
	require.NoError(t, err)
}

// A process of 0.1.0 only writes the node's key. It is detected when it overwrites this process's announcement, which
// is written again after that process has terminated.
func TestDuplicateOfOlderRelease(t *testing.T) {
	t.Parallel()
	s := start(t)
	raw, err := clientv3.New(clientv3.Config{Endpoints: s.etcd.Endpoints()})
	require.NoError(t, err)
	defer raw.Close()
	c := open(t, etcd.Options{Endpoints: s.etcd.Endpoints(), Prefix: "/p", LeaseTTL: time.Second})
	live := sampleLive("a")
	announce(t, c, live)
	coordtest.Await(t, c, "its own key", func(o failover.Observation) bool { return len(o.Live) == 1 })
	old := live
	old.Process = "of 0.1.0"
	value, err := json.Marshal(old)
	require.NoError(t, err)
	lease, err := raw.Grant(t.Context(), 1)
	require.NoError(t, err)
	_, err = raw.Put(t.Context(), "/p/live/"+live.Node.ID.String(), string(value), clientv3.WithLease(lease.ID))
	require.NoError(t, err)
	coordtest.Await(t, c, "the duplicate process", func(o failover.Observation) bool {
		return o.Duplicate != nil && o.Duplicate.Live == old &&
			!o.Duplicate.Stale
	})
	coordtest.Await(t, c, "its own key again", func(o failover.Observation) bool {
		l, ok := o.LiveNode(live.Node.ID)
		return o.Duplicate == nil && ok && l == live
	})
}
