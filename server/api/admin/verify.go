// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Verify compares the stores of the two nodes.
func (a *Service) Verify(ctx context.Context, req *pb.VerifyRequest) (*pb.VerifyResponse, error) {
	resp, err := a.o.Guard.Verify(ctx, req.GetDeep(), req.GetFullSpeed())
	if err != nil {
		return nil, apierror.ToStatus(fmt.Errorf("verify: %w", err))
	}
	return resp, nil
}

// GetQueueDigests returns the rolling digests of this node's queues.
func (a *Service) GetQueueDigests(
	ctx context.Context, req *pb.GetQueueDigestsRequest,
) (*pb.GetQueueDigestsResponse, error) {
	d, err := a.o.Guard.QueueDigests(ctx, req.GetAtLsn())
	if err != nil {
		return nil, apierror.ToStatus(err)
	}
	out := &pb.GetQueueDigestsResponse{
		Lsn: d.LSN, Digest: d.Digest, Damage: protoconv.DamageToProto(a.store.Repair().Status()),
		Damaged: protoconv.DamagedToProto(a.store.Repair().Damaged(protoconv.MaxListedDamage)),
	}
	for _, q := range d.Queues {
		out.Queues = append(out.Queues, &pb.QueueDigest{
			Id: q.ID, Name: q.Name, Digest: q.Digest, NextSequence: q.NextSequence, Messages: q.Messages,
		})
	}
	return out, nil
}

// Scrub reads all data of this node from disk and records corruption.
func (a *Service) Scrub(ctx context.Context, req *pb.ScrubRequest) (*pb.ScrubResponse, error) {
	r, err := a.o.Guard.Scrub(ctx, req.GetFullSpeed())
	if err != nil {
		return nil, apierror.ToStatus(fmt.Errorf("scrub: %w", err))
	}
	return &pb.ScrubResponse{
		Pages: r.Pages, LogBytes: r.LogBytes, Damage: protoconv.DamageToProto(a.store.Repair().Status()),
		Damaged: protoconv.DamagedToProto(a.store.Repair().Damaged(protoconv.MaxListedDamage)),
	}, nil
}

// DropDamaged acknowledges corrupt messages of a queue that cannot be repaired, and returns their sequences. In a dry
// run, it acknowledges none of them.
func (a *Service) DropDamaged(ctx context.Context, req *pb.DropDamagedRequest) (*pb.DropDamagedResponse, error) {
	sequences, err := a.o.Guard.DropDamaged(ctx, req.GetQueue(), req.GetOnly(), req.GetDryRun())
	if errors.Is(err, txn.ErrQueueNotFound) && a.o.NotFound != nil {
		err = a.o.NotFound(req.GetQueue())
	}
	if err != nil {
		return nil, apierror.ToStatus(fmt.Errorf("drop corrupt messages of %q: %w", req.GetQueue(), err))
	}
	return &pb.DropDamagedResponse{Sequences: sequences}, nil
}
