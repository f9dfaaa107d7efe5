// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// PutPolicy sets the policy with defaults and limits for the queues that match a name pattern.
func (s *Service) PutPolicy(ctx context.Context, req *pb.PutPolicyRequest) (*pb.PutPolicyResponse, error) {
	resp, err := s.putPolicy(ctx, req)
	if err != nil {
		return nil, s.status(fmt.Errorf("set policy %q: %w", req.GetPolicy().GetPattern(), err))
	}
	return resp, nil
}

func (s *Service) putPolicy(ctx context.Context, req *pb.PutPolicyRequest) (*pb.PutPolicyResponse, error) {
	pattern := req.GetPolicy().GetPattern()
	if err := txn.CheckPattern(pattern); err != nil {
		return nil, err
	}
	p, err := protoconv.QueuePolicy(req.GetPolicy())
	if err != nil {
		return nil, err
	}
	session, err := s.sessionWith(failover.FeatureQueues)
	if err != nil {
		return nil, err
	}
	o, err := s.identify(req.GetProducer())
	if err != nil {
		return nil, err
	}
	deadLetter := req.GetPolicy().GetDefaults().GetDeadLetter()
	if deadLetter != "" {
		p.Defaults.DeadLetter, err = s.findDeadLetter("dead_letter", deadLetter)
		err = crossPair(err) // each pair has its own policies
		if err != nil && o.prior == nil && !o.mustLog(err) {
			return nil, err
		}
	}
	if _, err := s.commit(ctx, session, o, func(b *txn.Builder) { b.PutPolicy(pattern, p) }); err != nil {
		return nil, err
	}
	session.Consumers.Altered(txn.NoQueue)
	return &pb.PutPolicyResponse{Policy: protoconv.QueuePolicyToProto(pattern, &p, deadLetter)}, nil
}

// DeletePolicy deletes the policy with the given name pattern.
func (s *Service) DeletePolicy(ctx context.Context, req *pb.DeletePolicyRequest) (*pb.DeletePolicyResponse, error) {
	err := s.deletePolicy(ctx, req)
	if err != nil {
		return nil, s.status(fmt.Errorf("delete policy %q: %w", req.GetPattern(), err))
	}
	return &pb.DeletePolicyResponse{}, nil
}

func (s *Service) deletePolicy(ctx context.Context, req *pb.DeletePolicyRequest) error {
	if err := txn.CheckPattern(req.GetPattern()); err != nil {
		return err
	}
	session, err := s.sessionWith(failover.FeatureQueues)
	if err != nil {
		return err
	}
	o, err := s.identify(req.GetProducer())
	if err != nil {
		return err
	}
	if _, err := s.commit(ctx, session, o, func(b *txn.Builder) { b.DeletePolicy(req.GetPattern()) }); err != nil {
		return err
	}
	session.Consumers.Altered(txn.NoQueue)
	return nil
}

// ListPolicies returns all policies.
func (s *Service) ListPolicies(context.Context, *pb.ListPoliciesRequest) (*pb.ListPoliciesResponse, error) {
	if _, err := s.serving.Session(); err != nil {
		return nil, s.status(err)
	}
	resp := &pb.ListPoliciesResponse{}
	for _, p := range query.Policies(s.store) {
		resp.Policies = append(resp.Policies, protoconv.QueuePolicyToProto(p.Pattern, &p.QueuePolicy, p.DeadLetter))
	}
	return resp, nil
}
