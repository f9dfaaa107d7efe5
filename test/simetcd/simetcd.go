// SPDX-License-Identifier: Apache-2.0

// Package simetcd implements the part of etcd that the directory of a fleet uses, in memory, for tests in a
// testing/synctest bubble: ranges, transactions, watches and leases, with revisions and compactions.
//
// A Server serves the gRPC API of etcd, so that the client library of etcd connects to it over a simulated network
// (test/simnet). A cut link, or a stopped process, simulates an outage. Server adds the faults that only etcd can
// have: transactions with an unknown outcome, compactions, and restorations of an older copy.
//
// A Server has one member. Users, and sorting other than by ascending keys, are not supported.
package simetcd

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Outcome is the outcome of a transaction with changes.
type Outcome int

// Outcomes of a transaction.
const (
	// Responds executes the transaction and responds.
	Responds Outcome = iota
	// ResponseLost executes the transaction, and returns an error.
	ResponseLost
	// NotExecuted returns an error without executing the transaction.
	NotExecuted
	// Late returns an error, and executes the transaction after Options.Late.
	Late
)

// Options configures New. The zero value is usable.
type Options struct {
	// PageKeys limits the number of keys in the response to a range with a limit. 0: only the limit of the request.
	PageKeys int64
	// Late is the time after which a transaction with the outcome Late is executed.
	Late time.Duration
}

// Server is an etcd cluster with one member. It is safe for concurrent use.
type Server struct {
	etcdserverpb.UnimplementedKVServer
	etcdserverpb.UnimplementedWatchServer
	etcdserverpb.UnimplementedLeaseServer

	o Options

	mu        sync.Mutex // guards the fields below
	data      data
	cluster   uint64
	timers    map[int64]*time.Timer // of leases
	watchers  map[*watcher]struct{}
	outcomes  []Outcome // of the next transactions with changes
	unknown   int       // transactions with another outcome than Responds
	grpc      *grpc.Server
	compacted int64
}

// data is the content of etcd. Values of keys are not changed after they are stored.
type data struct {
	revision int64
	keys     map[string]*mvccpb.KeyValue
	// log contains all changes since the compaction, in the order of their revisions.
	log    []*mvccpb.Event
	base   map[string]*mvccpb.KeyValue // contents at the compaction
	leases map[int64]int64             // time to live in seconds, by ID
	lease  int64                       // last ID
}

// Copy is a copy of the contents at a revision.
type Copy struct{ data data }

// New creates an empty Server.
func New(o Options) *Server {
	return &Server{
		o: o, data: newData(), cluster: 1, timers: map[int64]*time.Timer{}, watchers: map[*watcher]struct{}{},
	}
}

func newData() data {
	return data{
		revision: 1, keys: map[string]*mvccpb.KeyValue{}, base: map[string]*mvccpb.KeyValue{}, leases: map[int64]int64{},
	}
}

func (d *data) clone() data {
	c := *d
	c.keys, c.base, c.leases = maps.Clone(d.keys), maps.Clone(d.keys), maps.Clone(d.leases)
	c.log = nil
	return c
}

// Serve serves the API on a listener until Stop is called.
func (s *Server) Serve(l net.Listener) error {
	g := grpc.NewServer()
	etcdserverpb.RegisterKVServer(g, s)
	etcdserverpb.RegisterWatchServer(g, s)
	etcdserverpb.RegisterLeaseServer(g, s)
	s.mu.Lock()
	s.grpc = g
	s.mu.Unlock()
	if err := g.Serve(l); err != nil {
		return fmt.Errorf("simetcd: %w", err)
	}
	return nil
}

// Stop ends Serve and all connections. The contents remain.
func (s *Server) Stop() {
	s.mu.Lock()
	g := s.grpc
	s.grpc = nil
	s.mu.Unlock()
	if g != nil {
		g.Stop()
	}
}

// SetOutcomes sets the outcomes of the next transactions with changes.
func (s *Server) SetOutcomes(outcomes ...Outcome) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outcomes = outcomes
}

// Unknown returns the number of transactions with another outcome than Responds so far.
func (s *Server) Unknown() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.unknown
}

// Copy returns a copy of the contents.
func (s *Server) Copy() Copy {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Copy{s.data.clone()}
}

// Restore replaces the contents by a copy, and ends all watches. The new cluster continues with the revision of the
// copy. An empty Copy deletes everything.
func (s *Server) Restore(c Copy) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster++
	if c.data.keys == nil {
		c.data = newData()
	}
	s.data = c.data.clone()
	s.compacted = s.data.revision
	for id, t := range s.timers {
		t.Stop()
		delete(s.timers, id)
	}
	for id, ttl := range s.data.leases {
		s.startLeaseLocked(id, ttl)
	}
	for w := range s.watchers {
		w.end()
	}
}

// Compact implements etcdserverpb.KVServer. It removes all revisions before the requested one; 0: the current one.
func (s *Server) Compact(
	_ context.Context, r *etcdserverpb.CompactionRequest,
) (*etcdserverpb.CompactionResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := cmp.Or(r.Revision, s.data.revision)
	switch {
	case at > s.data.revision:
		return nil, rpctypes.ErrGRPCFutureRev
	case at <= s.compacted:
		return nil, rpctypes.ErrGRPCCompacted
	}
	s.data.base = s.data.at(at)
	s.data.log = slices.DeleteFunc(s.data.log, func(ev *mvccpb.Event) bool { return ev.Kv.ModRevision <= at })
	s.compacted = at
	return &etcdserverpb.CompactionResponse{Header: s.headerLocked()}, nil
}

// Keys returns the values of all keys.
func (s *Server) Keys() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[string]string{}
	for k, kv := range s.data.keys {
		all[k] = string(kv.Value)
	}
	return all
}

func (s *Server) headerLocked() *etcdserverpb.ResponseHeader {
	return &etcdserverpb.ResponseHeader{ClusterId: s.cluster, MemberId: 1, Revision: s.data.revision, RaftTerm: 2}
}

// Range implements etcdserverpb.KVServer.
func (s *Server) Range(
	_ context.Context, r *etcdserverpb.RangeRequest,
) (*etcdserverpb.RangeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rangeLocked(r)
}

// Put implements etcdserverpb.KVServer.
func (s *Server) Put(ctx context.Context, r *etcdserverpb.PutRequest) (*etcdserverpb.PutResponse, error) {
	resp, err := s.Txn(ctx, &etcdserverpb.TxnRequest{Success: []*etcdserverpb.RequestOp{
		{Request: &etcdserverpb.RequestOp_RequestPut{RequestPut: r}},
	}})
	if err != nil {
		return nil, err
	}
	put := resp.Responses[0].GetResponsePut()
	put.Header = resp.Header
	return put, nil
}

// DeleteRange implements etcdserverpb.KVServer.
func (s *Server) DeleteRange(
	ctx context.Context, r *etcdserverpb.DeleteRangeRequest,
) (*etcdserverpb.DeleteRangeResponse, error) {
	resp, err := s.Txn(ctx, &etcdserverpb.TxnRequest{Success: []*etcdserverpb.RequestOp{
		{Request: &etcdserverpb.RequestOp_RequestDeleteRange{RequestDeleteRange: r}},
	}})
	if err != nil {
		return nil, err
	}
	deleted := resp.Responses[0].GetResponseDeleteRange()
	deleted.Header = resp.Header
	return deleted, nil
}

// Txn implements etcdserverpb.KVServer.
func (s *Server) Txn(_ context.Context, r *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := check(r); err != nil {
		return nil, err
	}
	outcome := Responds
	if changes(r.Success) || changes(r.Failure) {
		if len(s.outcomes) > 0 {
			outcome, s.outcomes = s.outcomes[0], s.outcomes[1:]
		}
	}
	switch outcome {
	case Responds:
		return s.txnLocked(r)
	case ResponseLost:
		if _, err := s.txnLocked(r); err != nil {
			return nil, err
		}
	case Late:
		time.AfterFunc(s.o.Late, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			_, _ = s.txnLocked(r) // without a client
		})
	case NotExecuted:
	}
	s.unknown++
	return nil, rpctypes.ErrGRPCTimeout
}

// LeaseGrant implements etcdserverpb.LeaseServer.
func (s *Server) LeaseGrant(
	_ context.Context, r *etcdserverpb.LeaseGrantRequest,
) (*etcdserverpb.LeaseGrantResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.ID != 0 {
		return nil, status.Error(codes.Unimplemented, "lease with an ID of the client")
	}
	s.data.lease++
	s.startLeaseLocked(s.data.lease, r.TTL)
	return &etcdserverpb.LeaseGrantResponse{Header: s.headerLocked(), ID: s.data.lease, TTL: r.TTL}, nil
}

func (s *Server) startLeaseLocked(id, ttl int64) {
	s.data.leases[id] = ttl
	var t *time.Timer
	t = time.AfterFunc(time.Duration(ttl)*time.Second, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.timers[id] == t {
			s.revokeLocked(id)
		}
	})
	s.timers[id] = t
}

// revokeLocked ends a lease and deletes its keys.
func (s *Server) revokeLocked(id int64) {
	if t := s.timers[id]; t != nil {
		t.Stop()
	}
	delete(s.timers, id)
	delete(s.data.leases, id)
	tx := s.beginLocked()
	for _, kv := range s.data.sorted(nil, []byte{0}) {
		if kv.Lease == id {
			tx.remove(string(kv.Key))
		}
	}
	tx.commit()
}

// LeaseRevoke implements etcdserverpb.LeaseServer.
func (s *Server) LeaseRevoke(
	_ context.Context, r *etcdserverpb.LeaseRevokeRequest,
) (*etcdserverpb.LeaseRevokeResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, exists := s.data.leases[r.ID]; !exists {
		return nil, rpctypes.ErrGRPCLeaseNotFound
	}
	s.revokeLocked(r.ID)
	return &etcdserverpb.LeaseRevokeResponse{Header: s.headerLocked()}, nil
}

// LeaseKeepAlive implements etcdserverpb.LeaseServer.
func (s *Server) LeaseKeepAlive(stream etcdserverpb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client has ended the stream
		}
		if err := stream.Send(s.keepAlive(r.ID)); err != nil {
			return err
		}
	}
}

func (s *Server) keepAlive(id int64) *etcdserverpb.LeaseKeepAliveResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	ttl := s.data.leases[id] // 0: the lease has expired
	if ttl > 0 {
		s.timers[id].Stop()
		s.startLeaseLocked(id, ttl)
	}
	return &etcdserverpb.LeaseKeepAliveResponse{Header: s.headerLocked(), ID: id, TTL: ttl}
}
