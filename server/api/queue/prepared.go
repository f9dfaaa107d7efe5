// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/server/delivery/twophase"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const maxPreparedPage = 1000

// Prepare executes the first phase of a two-phase transaction.
func (s *Service) Prepare(ctx context.Context, req *pb.PrepareRequest) (*pb.PrepareResponse, error) {
	resp, err := s.prepare(ctx, req)
	if err != nil {
		return nil, s.status(fmt.Errorf("prepare %q: %w", req.GetXid(), err))
	}
	return resp, nil
}

func (s *Service) prepare(ctx context.Context, req *pb.PrepareRequest) (*pb.PrepareResponse, error) {
	session, err := s.forPrepared(req.GetXid())
	if err != nil {
		return nil, err
	}
	producer, err := protoconv.Producer(req.GetProducer())
	if err != nil {
		return nil, err
	}
	ops, err := s.checkOperations(session, req.GetOperations())
	if err != nil {
		return nil, err
	}
	for i := range ops {
		if ops[i].releases != nil {
			return nil, fmt.Errorf("operation %d: %w: prepared transaction cannot release messages", i, apierror.ErrInvalid)
		}
	}
	if !req.GetProducer().GetRetry() {
		if err := s.mayUse(ctx, ops); err != nil {
			return nil, err
		}
	}
	prior, missing, err := s.resolveAll(producer, req.GetProducer().GetRetry(), ops)
	if err != nil {
		return nil, err
	}
	timeMS := now()
	if prior != nil {
		err := s.checkSame(producer, prior, func(b *txn.Builder) { s.appendPrepare(b, req.GetXid(), 0, ops) })
		if err != nil {
			return nil, err
		}
		return s.prepareResponse(req, ops, &prior.Result, nil)
	}
	if err := s.checkSiteEpochs(ops); err != nil {
		return nil, err
	}
	wait, err := s.mayTransact(ctx, ops)
	if err != nil {
		return nil, err
	}
	defer hold(ctx, wait, session.Ended())
	buf := s.buffer()
	defer s.release(buf)
	var b txn.Builder
	b.Begin(*buf, timeMS, producer)
	s.appendPrepare(&b, req.GetXid(), timeMS, ops)
	if *buf, err = b.Finish(); err != nil {
		return nil, fmt.Errorf("encode the transaction: %w", err)
	}
	result, err := session.Prepared.Prepare(ctx, req.GetXid(), *buf)
	if err != nil {
		return nil, err
	}
	return s.prepareResponse(req, ops, result, missing)
}

func (s *Service) forPrepared(xid string) (*session.Session, error) {
	session, err := s.serving.Session()
	if err != nil {
		return nil, err
	}
	if err := txn.CheckXID(xid); err != nil {
		return nil, err
	}
	return session, s.serving.Require(session, failover.FeatureQueues)
}

func (s *Service) appendPrepare(b *txn.Builder, xid string, timeMS int64, ops []operation) {
	var inner txn.Builder
	inner.Begin(nil, timeMS, nil)
	s.appendOperations(&inner, timeMS, ops)
	payload, err := inner.Finish()
	if err != nil {
		b.Fail(err)
		return
	}
	b.Prepare(xid, payload)
}

func (s *Service) prepareResponse(
	req *pb.PrepareRequest, ops []operation, r *txn.Result, missing error,
) (*pb.PrepareResponse, error) {
	if err := s.refusal(r, req.GetProducer() != nil, missing, queuesOf(ops)...); err != nil {
		return nil, err
	}
	if len(r.Ops) != 1 {
		return nil, errOtherTransaction(req.GetProducer())
	}
	return &pb.PrepareResponse{Lsn: r.Ops[0].ID, Duplicate: r.Duplicate}, nil
}

// CommitPrepared commits a prepared transaction.
func (s *Service) CommitPrepared(
	ctx context.Context, req *pb.CommitPreparedRequest,
) (*pb.CommitPreparedResponse, error) {
	by, err := s.decide(ctx, twophase.Decision{XID: req.GetXid(), Commit: true, By: decider(req.GetHeuristic())})
	if err != nil {
		return nil, s.status(fmt.Errorf("commit the prepared transaction %q: %w", req.GetXid(), err))
	}
	return &pb.CommitPreparedResponse{Heuristic: by.Heuristic()}, nil
}

// RollbackPrepared rolls back a prepared transaction.
func (s *Service) RollbackPrepared(
	ctx context.Context, req *pb.RollbackPreparedRequest,
) (*pb.RollbackPreparedResponse, error) {
	by, err := s.decide(ctx, twophase.Decision{XID: req.GetXid(), By: decider(req.GetHeuristic())})
	if err != nil {
		return nil, s.status(fmt.Errorf("roll back the prepared transaction %q: %w", req.GetXid(), err))
	}
	return &pb.RollbackPreparedResponse{Heuristic: by.Heuristic()}, nil
}

func decider(heuristic bool) txn.Decider {
	if heuristic {
		return txn.ByOperator
	}
	return txn.ByCoordinator
}

func (s *Service) decide(ctx context.Context, d twophase.Decision) (txn.Decider, error) {
	session, err := s.forPrepared(d.XID)
	if err != nil {
		return 0, err
	}
	if err := s.mayDecide(ctx, d); err != nil {
		return 0, err
	}
	return session.Prepared.Decide(ctx, d)
}

// ListPrepared returns the prepared transactions that wait for a decision.
func (s *Service) ListPrepared(_ context.Context, req *pb.ListPreparedRequest) (*pb.ListPreparedResponse, error) {
	if _, err := s.serving.Session(); err != nil {
		return nil, s.status(err)
	}
	limit := pageSize(req.GetLimit(), maxPreparedPage)
	list, total, size, err := query.PreparedList(s.store, req.GetAfterLsn(), limit+1)
	if err != nil {
		return nil, s.status(err)
	}
	resp := &pb.ListPreparedResponse{Total: uint32(total), TotalBytes: size, More: len(list) > limit}
	for i := range list[:min(len(list), limit)] {
		resp.Transactions = append(resp.Transactions, preparedToProto(&list[i]))
	}
	return resp, nil
}

func preparedToProto(p *query.PreparedInfo) *pb.PreparedTransaction {
	out := &pb.PreparedTransaction{
		Xid: p.XID, Lsn: p.LSN, PreparedAt: timestamppb.New(time.UnixMilli(p.TimeMS)), Bytes: uint64(p.Bytes),
	}
	for _, q := range p.Queues {
		out.Queues = append(out.Queues, &pb.PreparedQueue{Queue: q.Queue, Publishes: q.Publishes, Acks: q.Acks})
	}
	return out
}
