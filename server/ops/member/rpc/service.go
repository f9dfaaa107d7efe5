// SPDX-License-Identifier: Apache-2.0

// Package rpc implements lockstep.v1.FleetService, which shows and changes the directory of a fleet.
package rpc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/ops/member"
	"github.com/lockstep-mq/lockstep/server/ops/mover"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	defaultPage  = 1_000
	maxPage      = 10_000
	maxPairs     = 1_000
	maxConflicts = 1_000
	maxMalformed = 100
)

// Manager manages the membership of this pair in a fleet. *member.Manager implements it.
type Manager interface {
	// Status returns the membership of this pair.
	Status() member.Status
	// Directory returns the directory. It returns nil on a node that does not belong to a pair yet.
	Directory() *fleet.Directory
	// Rebuild writes the registration and the entries of this pair to a lost or restored directory.
	Rebuild(ctx context.Context, pairs []string) (fleet.Report, error)
	// Leave removes this pair from the fleet.
	Leave(ctx context.Context) error
}

// Options configures New.
type Options struct {
	// Manager is not used if Pair is empty.
	Manager Manager
	// Mover moves queues. It may be nil if Pair is empty.
	Mover *mover.Manager
	// Pair is the name of this pair; empty without a fleet.
	Pair string
	// NotActive returns the error of a node that is not the active, with the address of the active.
	NotActive func() *apierror.NotActiveError
}

// Service implements lockstep.v1.FleetService.
type Service struct {
	pb.UnimplementedFleetServiceServer

	o Options
}

var _ pb.FleetServiceServer = (*Service)(nil)

// New creates the service.
func New(o Options) *Service { return &Service{o: o} }

var errNoFleet = fmt.Errorf("%w: the pair belongs to no fleet; set fleet.pair on both nodes", apierror.ErrFleetState)

func (s *Service) directory() (*fleet.Directory, error) {
	if s.o.Pair == "" {
		return nil, errNoFleet
	}
	d := s.o.Manager.Directory()
	if d == nil {
		return nil, fmt.Errorf("%w: not loaded", fleet.ErrUnavailable)
	}
	return d, nil
}

// status converts an error. Errors of a node that is not the active contain the address of the active.
func (s *Service) status(err error) error {
	switch {
	case errors.Is(err, fleet.ErrNotActive):
		return apierror.ToStatus(s.o.NotActive())
	case errors.Is(err, replication.ErrOutcomeUnknown), errors.Is(err, fleet.ErrUnavailable):
	case errors.Is(err, fleet.ErrNotMember), errors.Is(err, fleet.ErrPairExists), errors.Is(err, fleet.ErrOwnsQueues),
		errors.Is(err, fleet.ErrMoving), errors.Is(err, fleet.ErrOtherName), errors.Is(err, fleet.ErrLive),
		errors.Is(err, fleet.ErrForgotten):
		err = fmt.Errorf("%w: %w", apierror.ErrFleetState, err)
	}
	return apierror.ToStatus(apierror.WithRedirect(err, s.o.NotActive))
}

// GetFleet implements FleetService.
func (s *Service) GetFleet(context.Context, *pb.GetFleetRequest) (*pb.GetFleetResponse, error) {
	if s.o.Pair == "" {
		return nil, s.status(errNoFleet)
	}
	st := s.o.Manager.Status()
	resp := &pb.GetFleetResponse{
		Pair: s.o.Pair, Directory: directoryToProto(st.Directory), Membership: membershipToProto(&st),
	}
	d := s.o.Manager.Directory()
	if d == nil {
		return resp, nil
	}
	for _, p := range d.Pairs() {
		resp.Pairs = append(resp.Pairs, pairToProto(p))
	}
	for _, r := range d.Rules() {
		resp.Rules = append(resp.Rules, &pb.PlacementRule{Pattern: r.Pattern, Pair: r.Pair, Labels: r.Labels})
	}
	return resp, nil
}

// ListPlacements implements FleetService. Each call reads at most maxPage queues of the directory, unless foreign keys
// precede them.
func (s *Service) ListPlacements(
	_ context.Context, req *pb.ListPlacementsRequest,
) (*pb.ListPlacementsResponse, error) {
	d, err := s.directory()
	if err != nil {
		return nil, s.status(err)
	}
	limit, pattern := cmp.Or(int(req.GetLimit()), defaultPage), req.GetPattern()
	if limit > maxPage || len(pattern) > fleet.MaxNameBytes {
		return nil, s.status(fmt.Errorf("%w: limit %d, must be at most %d; or a pattern of %d bytes, must have at most %d",
			apierror.ErrInvalid, limit, maxPage, len(pattern), fleet.MaxNameBytes))
	}
	st := d.Status()
	if !st.Loaded {
		return nil, s.status(fmt.Errorf("%w: not loaded", fleet.ErrUnavailable))
	}
	if name := req.GetQueue(); name != "" {
		return placement(d, name, st.Current), nil
	}
	read := limit
	if req.GetPair() != "" || pattern != "" {
		read = maxPage
	}
	page, more := readPage(d, req.GetAfter(), read)
	resp := &pb.ListPlacementsResponse{Current: st.Current}
	for i, p := range page {
		if len(resp.GetPlacements()) == limit {
			page, more = page[:i], true
			break
		}
		if (req.GetPair() == "" || p.Pair == req.GetPair()) && (pattern == "" || txn.MatchGlob(pattern, p.Queue)) {
			resp.Placements = append(resp.Placements, placementToProto(p))
		}
	}
	if more && len(page) > 0 {
		resp.NextAfter = page[len(page)-1].Queue
	}
	return resp, nil
}

// readPage returns at most n queues after a name, and whether further queues may follow. It skips foreign keys in etcd
// that are invalid protobuf strings. If further queues follow, the page is not empty: its last name is the position of
// the next page.
func readPage(d *fleet.Directory, after string, n int) (page []fleet.Placement, more bool) {
	for {
		page = d.Queues(after, n)
		if more = len(page) == n; more {
			after = page[n-1].Queue
		}
		page = slices.DeleteFunc(page, func(p fleet.Placement) bool { return !utf8.ValidString(p.Queue) })
		if !more || len(page) > 0 {
			return page, more
		}
	}
}

func placement(d *fleet.Directory, queue string, current bool) *pb.ListPlacementsResponse {
	resp := &pb.ListPlacementsResponse{Current: current}
	if p, found := d.Placement(queue); found {
		resp.Placements = []*pb.Placement{placementToProto(p)}
	}
	return resp
}

func placementToProto(p fleet.Placement) *pb.Placement {
	return &pb.Placement{Queue: p.Queue, Pair: p.Pair, Epoch: p.Epoch, Group: p.Group}
}

// PutPlacementRule implements FleetService.
func (s *Service) PutPlacementRule(
	ctx context.Context, req *pb.PutPlacementRuleRequest,
) (*pb.PutPlacementRuleResponse, error) {
	d, err := s.directory()
	if err != nil {
		return nil, s.status(err)
	}
	r := req.GetRule()
	if err := d.PutRule(ctx, fleet.Rule{Pattern: r.GetPattern(), Pair: r.GetPair(), Labels: r.GetLabels()}); err != nil {
		return nil, s.status(err)
	}
	return &pb.PutPlacementRuleResponse{}, nil
}

// DeletePlacementRule implements FleetService.
func (s *Service) DeletePlacementRule(
	ctx context.Context, req *pb.DeletePlacementRuleRequest,
) (*pb.DeletePlacementRuleResponse, error) {
	d, err := s.directory()
	if err != nil {
		return nil, s.status(err)
	}
	pattern := req.GetPattern()
	if pattern == "" || len(pattern) > fleet.MaxNameBytes {
		return nil, s.status(fmt.Errorf("%w: pattern of %d bytes, must have 1 to %d", apierror.ErrInvalid, len(pattern),
			fleet.MaxNameBytes))
	}
	if err := d.DeleteRule(ctx, pattern); err != nil {
		return nil, s.status(err)
	}
	return &pb.DeletePlacementRuleResponse{}, nil
}

// SetPairState implements FleetService.
func (s *Service) SetPairState(ctx context.Context, req *pb.SetPairStateRequest) (*pb.SetPairStateResponse, error) {
	d, err := s.directory()
	if err != nil {
		return nil, s.status(err)
	}
	state, err := stateFromProto(req.GetState())
	if err == nil {
		err = d.SetState(ctx, req.GetPair(), state)
	}
	if err != nil {
		return nil, s.status(err)
	}
	return &pb.SetPairStateResponse{}, nil
}

// RebuildDirectory implements FleetService.
func (s *Service) RebuildDirectory(
	ctx context.Context, req *pb.RebuildDirectoryRequest,
) (*pb.RebuildDirectoryResponse, error) {
	if _, err := s.directory(); err != nil {
		return nil, s.status(err)
	}
	if n := len(req.GetPairs()); n == 0 || n > maxPairs {
		return nil, s.status(fmt.Errorf("%w: %d pairs, must be 1 to %d", apierror.ErrInvalid, n, maxPairs))
	}
	r, err := s.o.Manager.Rebuild(ctx, req.GetPairs())
	if err != nil {
		return nil, s.status(err)
	}
	return reportToProto(&r), nil
}

// LeaveFleet implements FleetService.
func (s *Service) LeaveFleet(ctx context.Context, _ *pb.LeaveFleetRequest) (*pb.LeaveFleetResponse, error) {
	if _, err := s.directory(); err != nil {
		return nil, s.status(err)
	}
	if err := s.o.Manager.Leave(ctx); err != nil {
		return nil, s.status(err)
	}
	return &pb.LeaveFleetResponse{}, nil
}
