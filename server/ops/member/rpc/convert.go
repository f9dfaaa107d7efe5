// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/ops/member"
)

func directoryToProto(st fleet.Status) *pb.FleetDirectory {
	out := &pb.FleetDirectory{
		Loaded: st.Loaded, Current: st.Current, FleetId: st.FleetID, LastEpoch: st.Counter, Queues: uint64(st.Queues),
		Problem: problemToProto(st.Problem), Malformed: texts(st.Malformed),
	}
	if st.Problem != nil {
		out.Error = text(st.Problem)
	}
	return out
}

func membershipToProto(st *member.Status) *pb.FleetMembership {
	out := &pb.FleetMembership{
		Active: st.Active, Left: st.Left, Conflicts: conflictsToProto(st.Conflicts),
		ConflictsTotal: uint64(len(st.Conflicts)),
	}
	if st.Log.Member() {
		out.FleetId, out.Pair = st.Log.ID.String(), st.Log.Pair
	}
	if st.Err != nil {
		out.Error = text(st.Err)
	}
	return out
}

func problemToProto(err error) pb.DirectoryProblem {
	switch {
	case err == nil:
		return pb.DirectoryProblem_DIRECTORY_PROBLEM_UNSPECIFIED
	case errors.Is(err, fleet.ErrNotMember), errors.Is(err, fleet.ErrForgotten):
		return pb.DirectoryProblem_DIRECTORY_PROBLEM_NOT_MEMBER
	case errors.Is(err, fleet.ErrLost):
		return pb.DirectoryProblem_DIRECTORY_PROBLEM_LOST
	case errors.Is(err, fleet.ErrRestored):
		return pb.DirectoryProblem_DIRECTORY_PROBLEM_RESTORED
	case errors.Is(err, fleet.ErrRebuilding):
		return pb.DirectoryProblem_DIRECTORY_PROBLEM_REBUILDING
	case errors.Is(err, fleet.ErrUnavailable):
		return pb.DirectoryProblem_DIRECTORY_PROBLEM_UNAVAILABLE
	}
	return pb.DirectoryProblem_DIRECTORY_PROBLEM_MALFORMED
}

func pairToProto(p fleet.PairStatus) *pb.FleetPair {
	out := &pb.FleetPair{
		Name: p.Name, PairId: p.ID, Addresses: p.Addresses, State: stateToProto(p.State), Labels: p.Labels, Live: p.Live,
		Queues: uint64(p.Queues), CapacityBytes: p.CapacityBytes,
	}
	if p.Live {
		out.Load = &pb.PairLoad{
			Queues: p.Load.Queues, StoredBytes: p.Load.StoredBytes, FreeBytes: p.Load.FreeBytes,
			PublishRate: p.Load.PublishRate,
		}
	}
	return out
}

func stateToProto(s fleet.State) pb.PairState {
	switch s {
	case fleet.StateOpen:
		return pb.PairState_PAIR_STATE_OPEN
	case fleet.StateDraining:
		return pb.PairState_PAIR_STATE_DRAINING
	case fleet.StateJoining:
		return pb.PairState_PAIR_STATE_JOINING
	case fleet.StateLeaving:
		return pb.PairState_PAIR_STATE_LEAVING
	case fleet.StateForgotten:
		return pb.PairState_PAIR_STATE_FORGOTTEN
	}
	return pb.PairState_PAIR_STATE_UNSPECIFIED // of a newer release
}

func stateFromProto(s pb.PairState) (fleet.State, error) {
	switch s { //nolint:exhaustive // the other states cannot be set
	case pb.PairState_PAIR_STATE_OPEN:
		return fleet.StateOpen, nil
	case pb.PairState_PAIR_STATE_DRAINING:
		return fleet.StateDraining, nil
	}
	return "", fmt.Errorf("%w: state %s, must be open or draining", apierror.ErrInvalid, s)
}

func reportToProto(r *fleet.Report) *pb.RebuildDirectoryResponse {
	return &pb.RebuildDirectoryResponse{
		Added: uint64(r.Added), Updated: uint64(r.Updated), Removed: uint64(r.Removed),
		Conflicts: conflictsToProto(r.Conflicts), ConflictsTotal: uint64(len(r.Conflicts)), MissingPairs: r.Waiting,
		Malformed: texts(r.Malformed),
	}
}

func conflictsToProto(all []fleet.Conflict) (out []*pb.DirectoryConflict) {
	for _, c := range all[:min(len(all), maxConflicts)] {
		out = append(out, &pb.DirectoryConflict{Queue: c.Queue, Epoch: c.Epoch, Pair: c.Pair, PairEpoch: c.PairEpoch})
	}
	return out
}

// text returns the text of an error as valid UTF-8: the error may contain a foreign key of etcd.
func text(err error) string { return strings.ToValidUTF8(err.Error(), "\uFFFD") }

func texts(errs []error) (out []string) {
	for _, err := range errs[:min(len(errs), maxMalformed)] {
		out = append(out, text(err))
	}
	return out
}
