// SPDX-License-Identifier: Apache-2.0

package etcdconn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// stream is a stream of changes that the test writes.
type stream struct {
	grpc.ClientStream

	ctx       context.Context
	responses chan *etcdserverpb.WatchResponse
	silent    bool // progress requests get no response
	requests  int
}

func (s *stream) Send(*etcdserverpb.WatchRequest) error {
	s.requests++
	if !s.silent {
		s.responses <- progress(1, 100)
	}
	return nil
}

func (s *stream) Recv() (*etcdserverpb.WatchResponse, error) {
	select {
	case r := <-s.responses:
		return r, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

func header(cluster uint64, revision int64) *etcdserverpb.ResponseHeader {
	return &etcdserverpb.ResponseHeader{ClusterId: cluster, Revision: revision}
}

func progress(cluster uint64, revision int64) *etcdserverpb.WatchResponse {
	return &etcdserverpb.WatchResponse{Header: header(cluster, revision)}
}

func changes(revisions ...int64) *etcdserverpb.WatchResponse {
	r := progress(1, revisions[len(revisions)-1])
	for _, rev := range revisions {
		r.Events = append(r.Events, &mvccpb.Event{Kv: &mvccpb.KeyValue{ModRevision: rev}})
	}
	return r
}

// following runs follow after a list at revision 10 of cluster 1.
type following struct {
	*Watch
	stream  *stream
	cancel  context.CancelFunc
	applied []int64
	ended   chan error
}

func follow(t *testing.T, timeout time.Duration, silent bool) *following {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &following{
		stream: &stream{ctx: ctx, responses: make(chan *etcdserverpb.WatchResponse, 1), silent: silent},
		cancel: cancel, ended: make(chan error, 1),
	}
	f.Watch = NewWatch(WatchOptions{RequestTimeout: timeout, Apply: func(events []*mvccpb.Event) {
		for _, ev := range events {
			f.applied = append(f.applied, ev.Kv.ModRevision)
		}
	}})
	go func() { f.ended <- f.follow(ctx, cancel, f.stream, header(1, 10)) }()
	return f
}

// Changes that the list contains are not applied again.
func TestFollowAppliesChangesAfterTheList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, time.Hour, false)
		for _, r := range []*etcdserverpb.WatchResponse{changes(8, 9), changes(10, 11, 12), progress(1, 12), changes(13)} {
			f.stream.responses <- r
		}
		synctest.Wait()
		require.Equal(t, []int64{11, 12, 13}, f.applied)
		f.cancel()
		require.ErrorIs(t, <-f.ended, context.Canceled)
	})
}

// A response of another history ends the watch, regardless of its source.
func TestFollowEndsWithOtherHistory(t *testing.T) {
	for name, other := range map[string]func(*following){
		"cluster in the stream":  func(f *following) { f.stream.responses <- progress(2, 20) },
		"revision in the stream": func(f *following) { f.stream.responses <- progress(1, 9) },
		"cluster of a response": func(f *following) {
			f.Check(header(1, 10), 0)
			f.Check(header(2, 20), 10)
		},
		"revision of a response": func(f *following) {
			f.Check(header(1, 10), 0)
			f.Check(header(1, 9), 10)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := follow(t, time.Hour, false)
				other(f)
				require.ErrorIs(t, <-f.ended, ErrReplaced)
			})
		})
	}
}

// A response that was overtaken by a later one belongs to the same history.
func TestCheckOfDelayedResponse(t *testing.T) {
	w := NewWatch(WatchOptions{})
	w.Check(header(1, 10), 0)
	before := w.Revision()
	require.EqualValues(t, 10, before)
	w.Check(header(1, 12), before)
	w.Check(header(1, 11), before)
	require.Empty(t, w.replaced)
	require.EqualValues(t, 12, w.Revision())
	w.Check(header(1, 5), 12)
	require.Len(t, w.replaced, 1)
	require.EqualValues(t, 5, w.Revision())
}

// An idle stream is kept while etcd responds to progress requests.
func TestFollowRequestsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := follow(t, time.Second, false)
		time.Sleep(time.Minute + time.Millisecond) //nolint:forbidigo // simulated time
		synctest.Wait()
		require.Empty(t, f.ended)
		require.Equal(t, 60, f.stream.requests)
		f.cancel()
		require.ErrorIs(t, <-f.ended, context.Canceled)
	})
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		f := follow(t, time.Second, true)
		require.ErrorIs(t, <-f.ended, errSilent)
		require.Equal(t, 2*time.Second, time.Since(began))
	})
}

// pages responds to reads of the keys k0 to k9 at revision 10.
type pages struct {
	keys   []*mvccpb.KeyValue
	reads  []clientv3.Op
	header func(read int) *etcdserverpb.ResponseHeader
	err    error
}

func (p *pages) get(
	_ context.Context, key string, opts ...clientv3.OpOption,
) (*clientv3.GetResponse, error) {
	op := clientv3.OpGet(key, opts...)
	p.reads = append(p.reads, op)
	resp := &clientv3.GetResponse{Header: p.header(len(p.reads))}
	for _, kv := range p.keys {
		if string(kv.Key) >= key && string(kv.Key) < string(op.RangeBytes()) {
			resp.Kvs = append(resp.Kvs, kv)
		}
	}
	if limit := int(op.Limit()); limit > 0 && len(resp.Kvs) > limit {
		resp.Kvs, resp.More = resp.Kvs[:limit], true
	}
	return resp, p.err
}

func TestList(t *testing.T) {
	var keys []*mvccpb.KeyValue
	var want []string
	for i := range 10 {
		want = append(want, fmt.Sprint("p/", i))
		keys = append(keys, &mvccpb.KeyValue{Key: []byte(want[i])})
	}
	keys = slices.Concat([]*mvccpb.KeyValue{{Key: []byte("o")}}, keys, []*mvccpb.KeyValue{{Key: []byte("q")}})
	list := func(p *pages, limit int64) ([]string, *etcdserverpb.ResponseHeader, error) {
		p.keys = keys
		var got []string
		h, err := NewWatch(WatchOptions{PageKeys: limit, Get: p.get}).List(t.Context(), "p/", func(kv *mvccpb.KeyValue) {
			got = append(got, string(kv.Key))
		})
		return got, h, err
	}
	for limit, reads := range map[int64]int{0: 1, 3: 4, 5: 2, 10: 1} {
		p := &pages{header: func(read int) *etcdserverpb.ResponseHeader { return header(1, int64(9+read)) }}
		got, h, err := list(p, limit)
		require.NoError(t, err)
		require.Equal(t, want, got)
		require.EqualValues(t, 10, h.GetRevision())
		require.Len(t, p.reads, reads)
		for i, op := range p.reads {
			require.Equal(t, i > 0, op.Rev() == 10, "later pages are read at the revision of the first one")
		}
	}
	for name, second := range map[string]*etcdserverpb.ResponseHeader{"cluster": header(2, 20), "revision": header(1, 9)} {
		t.Run("another "+name, func(t *testing.T) {
			_, _, err := list(&pages{header: func(read int) *etcdserverpb.ResponseHeader {
				if read == 1 {
					return header(1, 10)
				}
				return second
			}}, 3)
			require.ErrorIs(t, err, ErrReplaced)
		})
	}
	failed := errors.New("failed")
	_, _, err := list(&pages{err: failed, header: func(int) *etcdserverpb.ResponseHeader { return nil }}, 3)
	require.ErrorIs(t, err, failed)
}

// After an interruption, Run probes etcd again after a delay.
func TestRunRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		failed := errors.New("failed")
		began := time.Now()
		var at []time.Duration
		w := NewWatch(WatchOptions{
			Probe: func(context.Context) error { return failed },
			Ended: func(err error) {
				require.ErrorIs(t, err, failed)
				if at = append(at, time.Since(began)); len(at) == 3 {
					cancel()
				}
			},
		})
		w.Run(ctx)
		require.Equal(t, []time.Duration{0, relistDelay, 2 * relistDelay}, at)
	})
}
