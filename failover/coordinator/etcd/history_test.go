// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// proxy simulates a proxy in front of etcd. It keeps its clients' watches open when etcd is replaced, and reports no
// changes.
type proxy struct {
	etcdserverpb.UnimplementedKVServer
	etcdserverpb.UnimplementedWatchServer

	mu     sync.Mutex // guards the fields below
	header etcdserverpb.ResponseHeader
	record []byte // nil: no record
}

// replace simulates that etcd is replaced by an instance with another history.
func (p *proxy) replace(cluster uint64, revision int64, record []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.header.ClusterId, p.header.Revision, p.record = cluster, revision, record
}

func (p *proxy) head() *etcdserverpb.ResponseHeader {
	return &etcdserverpb.ResponseHeader{ClusterId: p.header.ClusterId, Revision: p.header.Revision}
}

func (p *proxy) Range(context.Context, *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	resp := &etcdserverpb.RangeResponse{Header: p.head()}
	if p.record != nil {
		resp.Kvs = []*mvccpb.KeyValue{{Key: []byte("/p/record"), Value: p.record, ModRevision: p.header.Revision}}
	}
	return resp, nil
}

func (p *proxy) Watch(stream etcdserverpb.Watch_WatchServer) error {
	if _, err := stream.Recv(); err != nil {
		return err
	}
	p.mu.Lock()
	created := &etcdserverpb.WatchResponse{Header: p.head(), Created: true}
	p.mu.Unlock()
	if err := stream.Send(created); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// The coordinator lists the keys again when a response proves that etcd was replaced, although the watch remains open.
func TestEtcdReplacedBehindProxy(t *testing.T) {
	encoded := func(op string) []byte {
		rec := coordtest.SampleRecord(op)
		value, err := rec.Encode()
		require.NoError(t, err)
		return value
	}
	p := &proxy{}
	p.replace(7, 50, encoded("new"))
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	// The client's keep-alive pings must not end the watch, because a new watch would list the keys anyway.
	server := grpc.NewServer(grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{
		MinTime: time.Millisecond, PermitWithoutStream: true,
	}))
	etcdserverpb.RegisterKVServer(server, p)
	etcdserverpb.RegisterWatchServer(server, p)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	t.Cleanup(func() {
		server.Stop()
		require.NoError(t, <-served)
	})
	c := open(t, etcd.Options{Endpoints: []string{ln.Addr().String()}, Prefix: "/p", RequestTimeout: 10 * time.Minute})
	is := func(op string) func(failover.Observation) bool {
		return func(o failover.Observation) bool { return o.Record != nil && o.Record.OpID == op }
	}
	coordtest.Await(t, c, "the record", is("new"))

	p.replace(7, 20, encoded("old")) // restored
	require.NoError(t, c.Ping(t.Context()))
	coordtest.Await(t, c, "an older record", is("old"))
	p.replace(8, 90, encoded("other")) // another cluster with a higher revision
	require.NoError(t, c.Ping(t.Context()))
	coordtest.Await(t, c, "the record of another cluster", is("other"))
	p.replace(8, 1, nil) // emptied
	_, _, err = c.Load(t.Context())
	require.ErrorIs(t, err, failover.ErrNoRecord)
	coordtest.Await(t, c, "no record", func(o failover.Observation) bool { return o.Missing && o.Record == nil })
}
