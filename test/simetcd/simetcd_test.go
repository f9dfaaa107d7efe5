// SPDX-License-Identifier: Apache-2.0

package simetcd_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/failover/coordinator/etcdconn"
	"github.com/lockstep-mq/lockstep/test/coordtest"
	"github.com/lockstep-mq/lockstep/test/simetcd"
	"github.com/lockstep-mq/lockstep/test/simnet"
)

const address = "etcd:2379"

// fixture is a Server on a simulated network, with a client.
type fixture struct {
	t      *testing.T
	server *simetcd.Server
	net    *simnet.Network
	client *clientv3.Client
}

func newFixture(t *testing.T, o simetcd.Options) *fixture {
	t.Helper()
	f := &fixture{t: t, server: simetcd.New(o), net: simnet.New(simnet.Options{Delay: time.Millisecond})}
	process := f.net.NewProcess("etcd")
	l, err := process.Listen(t.Context(), address)
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- f.server.Serve(l) }()
	clients := f.net.NewProcess("client")
	f.client, err = etcdconn.New(etcdconn.Options{
		Endpoints: []string{address},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			return clients.Dial(ctx, to)
		})},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, f.client.Close())
		f.server.Stop()
		require.NoError(t, <-ended)
		clients.Kill()
		process.Kill()
	})
	return f
}

// randomOps returns random operations on a few keys.
func randomOps(rng *rand.Rand) (ops []clientv3.Op) {
	used := map[string]bool{}
	for range rng.IntN(4) {
		k := fmt.Sprint("k", rng.IntN(5))
		if used[k] { // a key can be changed once in a transaction
			continue
		}
		used[k] = true
		switch rng.IntN(5) {
		case 0:
			ops = append(ops, clientv3.OpTxn([]clientv3.Cmp{randomCmp(rng)}, []clientv3.Op{clientv3.OpPut(k, "x")},
				[]clientv3.Op{clientv3.OpGet("k0"), clientv3.OpDelete(k)}))
		case 4:
			ops = append(ops, clientv3.OpPut(k, fmt.Sprint(rng.IntN(3))))
		case 1:
			ops = append(ops, clientv3.OpDelete(k))
		case 2:
			ops = append(ops, clientv3.OpGet(k))
		default:
			ops = append(ops, clientv3.OpGet("k", clientv3.WithPrefix(), clientv3.WithLimit(int64(rng.IntN(4)))))
		}
	}
	return ops
}

func randomCmp(rng *rand.Rand) clientv3.Cmp {
	k, sign := fmt.Sprint("k", rng.IntN(5)), []string{"=", "!=", ">", "<"}[rng.IntN(4)]
	c := []clientv3.Cmp{
		clientv3.Compare(clientv3.Value(k), sign, fmt.Sprint(rng.IntN(3))),
		clientv3.Compare(clientv3.CreateRevision(k), sign, rng.IntN(10)),
		clientv3.Compare(clientv3.ModRevision(k), sign, rng.IntN(20)),
		clientv3.Compare(clientv3.Version(k), sign, rng.IntN(4)),
	}[rng.IntN(4)]
	if rng.IntN(4) == 0 {
		c = c.WithRange("k9")
	}
	return c
}

func text(kvs []*mvccpb.KeyValue) (text string) {
	for _, kv := range kvs {
		text += fmt.Sprintf("%s=%s c%d m%d v%d; ", kv.Key, kv.Value, kv.CreateRevision, kv.ModRevision, kv.Version)
	}
	return text
}

// firstKeys returns the keys of the first range of a nested transaction.
func firstKeys(r *etcdserverpb.ResponseOp) []*mvccpb.KeyValue {
	for _, nested := range r.GetResponseTxn().GetResponses() {
		return nested.GetResponseRange().GetKvs()
	}
	return nil
}

// script executes random transactions, and returns their responses and the events of a watch as text.
func script(ctx context.Context, c *clientv3.Client, seed uint64) (out []string, _ error) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 300 {
		var cmps []clientv3.Cmp
		for range rng.IntN(3) {
			cmps = append(cmps, randomCmp(rng))
		}
		resp, err := c.Txn(ctx).If(cmps...).Then(randomOps(rng)...).Else(randomOps(rng)...).Commit()
		if err != nil {
			return nil, err
		}
		line := fmt.Sprintf("%v at %d: ", resp.Succeeded, resp.Header.Revision)
		for _, r := range resp.Responses {
			line += fmt.Sprint(r.GetResponseTxn().GetSucceeded(), text(firstKeys(r)))
			line += fmt.Sprintf("[%s %v %d %d] ", text(r.GetResponseRange().GetKvs()), r.GetResponseRange().GetMore(),
				r.GetResponseRange().GetCount(), r.GetResponseDeleteRange().GetDeleted())
		}
		old, err := c.Get(ctx, "k", clientv3.WithPrefix(), clientv3.WithRev(max(1, resp.Header.Revision-5)))
		if err != nil {
			return nil, err
		}
		out = append(out, line+text(old.Kvs))
	}
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	last, err := c.Get(ctx, "k")
	if err != nil {
		return nil, err
	}
	if _, err := c.Put(ctx, "k-end", ""); err != nil {
		return nil, err
	}
	stream, err := openWatch(watch, c, "k", 2)
	if err != nil {
		return nil, err
	}
	for {
		resp, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		for _, ev := range resp.Events {
			out = append(out, fmt.Sprint(ev.Type, text([]*mvccpb.KeyValue{ev.Kv})))
			if ev.Kv.ModRevision > last.Header.Revision {
				return out, nil
			}
		}
	}
}

// openWatch opens a watch of a prefix. The watch of the client library uses a global channel, which would stop the
// clock of a bubble.
func openWatch(ctx context.Context, c *clientv3.Client, prefix string, from int64) (
	etcdserverpb.Watch_WatchClient, error,
) {
	stream, err := etcdserverpb.NewWatchClient(c.ActiveConnection()).Watch(ctx)
	if err != nil {
		return nil, err
	}
	return stream, stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{
			Key: []byte(prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix)), StartRevision: from,
		},
	}})
}

// Server responds like a real etcd.
func TestServerEqualsEtcd(t *testing.T) {
	etcd := coordtest.StartEtcd(t, t.TempDir(), "")
	defer func() { require.NoError(t, etcd.Close()) }()
	c, err := etcdconn.New(etcdconn.Options{Endpoints: etcd.Endpoints()})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	want, err := script(t.Context(), c, 1)
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		got, err := script(t.Context(), newFixture(t, simetcd.Options{}).client, 1)
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
}

// A key with a lease is deleted when the lease expires.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, simetcd.Options{})
		ctx := t.Context()
		granted, err := f.client.Grant(ctx, 10)
		require.NoError(t, err)
		_, err = f.client.Put(ctx, "k", "v", clientv3.WithLease(granted.ID))
		require.NoError(t, err)
		watch, err := openWatch(ctx, f.client, "k", 0)
		require.NoError(t, err)
		_, err = watch.Recv() // created
		require.NoError(t, err)
		time.Sleep(9 * time.Second) //nolint:forbidigo // simulated time
		_, err = f.client.KeepAliveOnce(ctx, granted.ID)
		require.NoError(t, err)
		renewed := time.Now()
		resp, err := watch.Recv()
		require.NoError(t, err)
		require.Equal(t, mvccpb.DELETE, resp.Events[0].Type)
		require.InDelta(t, 10, time.Since(renewed).Seconds(), 0.1)
		_, err = f.client.KeepAliveOnce(ctx, granted.ID)
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)
		_, err = f.client.Put(ctx, "k", "v", clientv3.WithLease(granted.ID))
		require.ErrorIs(t, err, rpctypes.ErrLeaseNotFound)
	})
}

// Transactions can have an unknown outcome, revisions are compacted, and the contents are restored.
func TestFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, simetcd.Options{PageKeys: 2, Late: time.Second})
		ctx := t.Context()
		f.server.SetOutcomes(simetcd.ResponseLost, simetcd.NotExecuted, simetcd.Late)
		for i := range 3 {
			_, err := f.client.Txn(ctx).Then(clientv3.OpPut(fmt.Sprint("k", i), "")).Commit()
			require.Error(t, err)
		}
		require.Contains(t, f.server.Keys(), "k0")
		require.Len(t, f.server.Keys(), 1)
		time.Sleep(time.Second) //nolint:forbidigo // simulated time
		require.Contains(t, f.server.Keys(), "k2")
		require.Equal(t, 3, f.server.Unknown())

		before := f.server.Copy()
		put, err := f.client.Put(ctx, "k3", "")
		require.NoError(t, err)
		page, err := f.client.Get(ctx, "k", clientv3.WithPrefix(), clientv3.WithLimit(10))
		require.NoError(t, err)
		require.Len(t, page.Kvs, 2)
		require.True(t, page.More)
		_, err = f.client.Compact(ctx, put.Header.Revision)
		require.NoError(t, err)
		_, err = f.client.Get(ctx, "k", clientv3.WithRev(put.Header.Revision-1))
		require.ErrorIs(t, err, rpctypes.ErrCompacted)

		f.server.Restore(before)
		restored, err := f.client.Get(ctx, "k3")
		require.NoError(t, err)
		require.Empty(t, restored.Kvs)
		require.NotEqual(t, put.Header.ClusterId, restored.Header.ClusterId)
		require.Less(t, restored.Header.Revision, put.Header.Revision)
		f.server.Restore(simetcd.Copy{})
		require.Empty(t, f.server.Keys())
	})
}
