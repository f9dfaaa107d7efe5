// SPDX-License-Identifier: Apache-2.0

package simetcd

import (
	"bytes"
	"cmp"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// maxTxnOps is the default limit of operations in a transaction of etcd.
const maxTxnOps = 128

// inRange reports whether k is in a range of etcd keys. An empty end means only key, and "\0" means all keys from key
// on.
func inRange(k string, key, end []byte) bool {
	switch {
	case len(end) == 0:
		return k == string(key)
	case len(end) == 1 && end[0] == 0:
		return k >= string(key)
	}
	return k >= string(key) && k < string(end)
}

func sorted(keys map[string]*mvccpb.KeyValue, key, end []byte) (kvs []*mvccpb.KeyValue) {
	for k, kv := range keys {
		if inRange(k, key, end) {
			kvs = append(kvs, kv)
		}
	}
	slices.SortFunc(kvs, func(a, b *mvccpb.KeyValue) int { return bytes.Compare(a.Key, b.Key) })
	return kvs
}

func (d *data) sorted(key, end []byte) []*mvccpb.KeyValue { return sorted(d.keys, key, end) }

// at returns the contents at a revision, which must not be older than the compaction.
func (d *data) at(revision int64) map[string]*mvccpb.KeyValue {
	keys := map[string]*mvccpb.KeyValue{}
	for k, kv := range d.base {
		keys[k] = kv
	}
	for _, ev := range d.log {
		switch {
		case ev.Kv.ModRevision > revision:
			return keys
		case ev.Type == mvccpb.DELETE:
			delete(keys, string(ev.Kv.Key))
		default:
			keys[string(ev.Kv.Key)] = ev.Kv
		}
	}
	return keys
}

func (s *Server) rangeLocked(r *etcdserverpb.RangeRequest) (*etcdserverpb.RangeResponse, error) {
	if r.SortOrder == etcdserverpb.RangeRequest_DESCEND || r.SortTarget != etcdserverpb.RangeRequest_KEY {
		return nil, status.Error(codes.Unimplemented, "range in this order")
	}
	keys := s.data.keys
	switch {
	case r.Revision > s.data.revision:
		return nil, rpctypes.ErrGRPCFutureRev
	case r.Revision > 0 && r.Revision < s.compacted:
		return nil, rpctypes.ErrGRPCCompacted
	case r.Revision > 0:
		keys = s.data.at(r.Revision)
	}
	kvs := sorted(keys, r.Key, r.RangeEnd)
	resp := &etcdserverpb.RangeResponse{Header: s.headerLocked(), Count: int64(len(kvs))}
	limit := r.Limit
	if limit > 0 && s.o.PageKeys > 0 {
		limit = min(limit, s.o.PageKeys)
	}
	if limit > 0 && int64(len(kvs)) > limit {
		kvs, resp.More = kvs[:limit], true
	}
	if !r.CountOnly {
		for _, kv := range kvs {
			kv = proto.CloneOf(kv)
			if r.KeysOnly {
				kv.Value = nil
			}
			resp.Kvs = append(resp.Kvs, kv)
		}
	}
	return resp, nil
}

// check rejects transactions that etcd rejects.
func check(r *etcdserverpb.TxnRequest) error {
	if max(len(r.Compare), len(r.Success), len(r.Failure)) > maxTxnOps {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, ops := range [][]*etcdserverpb.RequestOp{r.Success, r.Failure} {
		put := map[string]bool{}
		for _, op := range ops {
			if p := op.GetRequestPut(); p != nil {
				if put[string(p.Key)] {
					return rpctypes.ErrGRPCDuplicateKey
				}
				put[string(p.Key)] = true
			}
		}
		for _, op := range ops {
			d := op.GetRequestDeleteRange()
			for k := range put {
				if d != nil && inRange(k, d.Key, d.RangeEnd) {
					return rpctypes.ErrGRPCDuplicateKey
				}
			}
		}
	}
	return nil
}

// changes reports whether operations can change keys.
func changes(ops []*etcdserverpb.RequestOp) bool {
	return slices.ContainsFunc(ops, func(op *etcdserverpb.RequestOp) bool { return op.GetRequestRange() == nil })
}

// txn is a transaction that is being executed.
type txn struct {
	s        *Server
	revision int64
	events   []*mvccpb.Event
}

func (s *Server) beginLocked() *txn { return &txn{s: s, revision: s.data.revision + 1} }

func (t *txn) add(ev *mvccpb.Event) {
	t.s.data.log = append(t.s.data.log, ev)
	t.events = append(t.events, ev)
}

func (t *txn) put(r *etcdserverpb.PutRequest) {
	kv := &mvccpb.KeyValue{
		Key: r.Key, Value: r.Value, Lease: r.Lease, ModRevision: t.revision, CreateRevision: t.revision, Version: 1,
	}
	if old := t.s.data.keys[string(r.Key)]; old != nil {
		kv.CreateRevision, kv.Version = old.CreateRevision, old.Version+1
	}
	t.s.data.keys[string(r.Key)] = kv
	t.add(&mvccpb.Event{Type: mvccpb.PUT, Kv: kv})
}

func (t *txn) remove(key string) {
	delete(t.s.data.keys, key)
	t.add(&mvccpb.Event{Type: mvccpb.DELETE, Kv: &mvccpb.KeyValue{Key: []byte(key), ModRevision: t.revision}})
}

// commit increments the revision and notifies the watches, if there were changes.
func (t *txn) commit() {
	if len(t.events) == 0 {
		return
	}
	t.s.data.revision = t.revision
	for w := range t.s.watchers {
		w.changed(t.events)
	}
}

// path is the result of the comparisons of a transaction, with those of its nested transactions. etcd evaluates all
// comparisons before the first change.
type path struct {
	succeeded bool
	ops       []*etcdserverpb.RequestOp
	nested    []*path // in the order of ops
}

func (s *Server) pathLocked(r *etcdserverpb.TxnRequest) (*path, error) {
	p := &path{succeeded: true, ops: r.Success}
	for _, c := range r.Compare {
		p.succeeded = p.succeeded && s.holdsLocked(c)
	}
	if !p.succeeded {
		p.ops = r.Failure
	}
	for _, op := range p.ops {
		if nested := op.GetRequestTxn(); nested != nil {
			n, err := s.pathLocked(nested)
			if err != nil {
				return nil, err
			}
			p.nested = append(p.nested, n)
		}
		if put := op.GetRequestPut(); put != nil && put.Lease != 0 {
			if _, exists := s.data.leases[put.Lease]; !exists {
				return nil, rpctypes.ErrGRPCLeaseNotFound
			}
		}
		if r := op.GetRequestRange(); r != nil {
			if _, err := s.rangeLocked(r); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

func (s *Server) txnLocked(r *etcdserverpb.TxnRequest) (*etcdserverpb.TxnResponse, error) {
	p, err := s.pathLocked(r)
	if err != nil {
		return nil, err
	}
	t := s.beginLocked()
	resp := t.executeAll(p)
	t.commit()
	resp.Header = s.headerLocked()
	return resp, nil
}

func (t *txn) executeAll(p *path) *etcdserverpb.TxnResponse {
	resp := &etcdserverpb.TxnResponse{Succeeded: p.succeeded}
	nested := p.nested
	for _, op := range p.ops {
		out := &etcdserverpb.ResponseOp{}
		switch r := op.Request.(type) {
		case *etcdserverpb.RequestOp_RequestRange:
			found, _ := t.s.rangeLocked(r.RequestRange) // verified by pathLocked
			out.Response = &etcdserverpb.ResponseOp_ResponseRange{ResponseRange: found}
		case *etcdserverpb.RequestOp_RequestPut:
			t.put(r.RequestPut)
			out.Response = &etcdserverpb.ResponseOp_ResponsePut{ResponsePut: &etcdserverpb.PutResponse{}}
		case *etcdserverpb.RequestOp_RequestDeleteRange:
			kvs := t.s.data.sorted(r.RequestDeleteRange.Key, r.RequestDeleteRange.RangeEnd)
			for _, kv := range kvs {
				t.remove(string(kv.Key))
			}
			out.Response = &etcdserverpb.ResponseOp_ResponseDeleteRange{
				ResponseDeleteRange: &etcdserverpb.DeleteRangeResponse{Deleted: int64(len(kvs))},
			}
		case *etcdserverpb.RequestOp_RequestTxn:
			out.Response = &etcdserverpb.ResponseOp_ResponseTxn{ResponseTxn: t.executeAll(nested[0])}
			nested = nested[1:]
		}
		resp.Responses = append(resp.Responses, out)
	}
	return resp
}

// holdsLocked reports whether a comparison holds for all keys in its range. Without a key, all fields are 0, and no
// comparison of the value holds.
func (s *Server) holdsLocked(c *etcdserverpb.Compare) bool {
	kvs := s.data.sorted(c.Key, c.RangeEnd)
	if len(kvs) == 0 {
		return c.Target != etcdserverpb.Compare_VALUE && holds(c, &mvccpb.KeyValue{})
	}
	return !slices.ContainsFunc(kvs, func(kv *mvccpb.KeyValue) bool { return !holds(c, kv) })
}

func holds(c *etcdserverpb.Compare, kv *mvccpb.KeyValue) bool {
	result := 0
	switch c.Target {
	case etcdserverpb.Compare_VERSION:
		result = cmp.Compare(kv.Version, c.GetVersion())
	case etcdserverpb.Compare_CREATE:
		result = cmp.Compare(kv.CreateRevision, c.GetCreateRevision())
	case etcdserverpb.Compare_MOD:
		result = cmp.Compare(kv.ModRevision, c.GetModRevision())
	case etcdserverpb.Compare_VALUE:
		result = bytes.Compare(kv.Value, c.GetValue())
	case etcdserverpb.Compare_LEASE:
		result = cmp.Compare(kv.Lease, c.GetLease())
	}
	switch c.Result {
	case etcdserverpb.Compare_EQUAL:
		return result == 0
	case etcdserverpb.Compare_NOT_EQUAL:
		return result != 0
	case etcdserverpb.Compare_GREATER:
		return result > 0
	case etcdserverpb.Compare_LESS:
		return result < 0
	}
	return false
}
