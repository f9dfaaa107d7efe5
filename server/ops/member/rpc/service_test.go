// SPDX-License-Identifier: Apache-2.0

package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/ops/member"
	"github.com/lockstep-mq/lockstep/server/ops/member/rpc"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

// manager is a fake Manager with a real directory.
type manager struct {
	directory *fleet.Directory
	member    member.Status

	pairs  []string // of the last Rebuild
	left   int
	report fleet.Report
	err    error // of Rebuild and Leave
}

func (m *manager) Directory() *fleet.Directory { return m.directory }

func (m *manager) Status() member.Status {
	st := m.member
	if st.Directory.Problem = fleet.ErrUnavailable; m.directory != nil {
		st.Directory = m.directory.Status()
	}
	return st
}

func (m *manager) Rebuild(_ context.Context, pairs []string) (fleet.Report, error) {
	m.pairs = pairs
	return m.report, m.err
}

func (m *manager) Leave(context.Context) error {
	m.left++
	return m.err
}

func newService(m *manager, pair string) *rpc.Service {
	return rpc.New(rpc.Options{Manager: m, Pair: pair, NotActive: func() *apierror.NotActiveError {
		return &apierror.NotActiveError{ActiveAddress: "b-1:7420"}
	}})
}

// reasonOf returns the reason of an error.
func reasonOf(t *testing.T, err error) string {
	t.Helper()
	st, ok := status.FromError(err)
	require.True(t, ok, err)
	for _, d := range st.Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info.GetReason()
		}
	}
	require.Fail(t, "no reason", err)
	return ""
}

// call calls all methods except GetFleet, and returns their errors by name.
func call(t *testing.T, s *rpc.Service) map[string]error {
	t.Helper()
	ctx, all := t.Context(), map[string]error{}
	_, all["list"] = s.ListPlacements(ctx, &pb.ListPlacementsRequest{})
	_, all["put"] = s.PutPlacementRule(ctx, &pb.PutPlacementRuleRequest{Rule: &pb.PlacementRule{Pattern: "x", Pair: "a"}})
	_, all["delete"] = s.DeletePlacementRule(ctx, &pb.DeletePlacementRuleRequest{Pattern: "x"})
	_, all["state"] = s.SetPairState(ctx, &pb.SetPairStateRequest{Pair: "a", State: pb.PairState_PAIR_STATE_DRAINING})
	_, all["rebuild"] = s.RebuildDirectory(ctx, &pb.RebuildDirectoryRequest{Pairs: []string{"a"}})
	_, all["leave"] = s.LeaveFleet(ctx, &pb.LeaveFleetRequest{})
	return all
}

func TestWithoutFleet(t *testing.T) {
	s := newService(nil, "")
	all := call(t, s)
	_, all["get"] = s.GetFleet(t.Context(), &pb.GetFleetRequest{})
	for name, err := range all {
		require.Equal(t, codes.FailedPrecondition, status.Code(err), name)
		require.Equal(t, "FLEET_STATE", reasonOf(t, err), name)
		require.Contains(t, err.Error(), "fleet.pair", name)
	}
}

// A new node that does not belong to a pair yet has no directory.
func TestWithoutDirectory(t *testing.T) {
	s := newService(&manager{}, "a")
	resp, err := s.GetFleet(t.Context(), &pb.GetFleetRequest{})
	require.NoError(t, err)
	require.Equal(t, pb.DirectoryProblem_DIRECTORY_PROBLEM_UNAVAILABLE, resp.GetDirectory().GetProblem())
	require.NotEmpty(t, resp.GetDirectory().GetError())
	for name, err := range call(t, s) {
		require.Equal(t, "DIRECTORY_UNAVAILABLE", reasonOf(t, err), name)
	}
}

// Errors of Rebuild and Leave.
func TestErrors(t *testing.T) {
	etcdError := status.Error(codes.NotFound, "etcd")
	for err, reason := range map[error]string{
		fleet.ErrNotActive:       "NOT_ACTIVE",
		replication.ErrNotActive: "NOT_ACTIVE",
		fleet.ErrNotMember:       "FLEET_STATE",
		fleet.ErrOwnsQueues:      "FLEET_STATE",
		fleet.ErrPairExists:      "FLEET_STATE",
		fleet.ErrOtherName:       "FLEET_STATE",
		fleet.ErrInvalid:         "INVALID",
		fleet.ErrLost:            "DIRECTORY_UNAVAILABLE",
		fleet.ErrContention:      "DIRECTORY_UNAVAILABLE",
		fmt.Errorf("%w: %w", fleet.ErrUnavailable, etcdError):                         "DIRECTORY_UNAVAILABLE",
		replication.ErrOutcomeUnknown:                                                 "OUTCOME_UNKNOWN",
		fmt.Errorf("%w: %w", replication.ErrOutcomeUnknown, replication.ErrNotActive): "OUTCOME_UNKNOWN",
	} {
		m := &manager{err: fmt.Errorf("fleet: %w", err), directory: newDirectory(t, nil, "a", nil)}
		s := newService(m, "a")
		_, rebuildErr := s.RebuildDirectory(t.Context(), &pb.RebuildDirectoryRequest{Pairs: []string{"a", "b"}})
		require.Equal(t, reason, reasonOf(t, rebuildErr), err)
		_, leaveErr := s.LeaveFleet(t.Context(), &pb.LeaveFleetRequest{})
		require.Equal(t, reason, reasonOf(t, leaveErr), err)
		require.Equal(t, []string{"a", "b"}, m.pairs)
		require.Equal(t, 1, m.left)
	}
	s := newService(&manager{directory: newDirectory(t, nil, "a", nil)}, "a")
	for _, n := range []int{0, 1001} {
		_, err := s.RebuildDirectory(t.Context(), &pb.RebuildDirectoryRequest{Pairs: make([]string, n)})
		require.Equal(t, "INVALID", reasonOf(t, err))
	}
}

func TestReport(t *testing.T) {
	m := &manager{directory: newDirectory(t, nil, "a", nil), report: fleet.Report{
		Added: 1, Updated: 2, Removed: 3, Waiting: []string{"b"}, Malformed: []error{errors.New("key \xff")},
		Conflicts: make([]fleet.Conflict, 1001),
	}}
	m.report.Conflicts[0] = fleet.Conflict{Queue: "q", Epoch: 4, Pair: "c", PairEpoch: 5}
	resp, err := newService(m, "a").RebuildDirectory(t.Context(), &pb.RebuildDirectoryRequest{Pairs: []string{"a"}})
	require.NoError(t, err)
	require.Equal(t, []uint64{1, 2, 3, 1001}, []uint64{
		resp.GetAdded(), resp.GetUpdated(), resp.GetRemoved(), resp.GetConflictsTotal(),
	})
	require.Len(t, resp.GetConflicts(), 1000)
	require.Equal(t, "q 4 c 5", fmt.Sprint(resp.GetConflicts()[0].GetQueue(), " ", resp.GetConflicts()[0].GetEpoch(), " ",
		resp.GetConflicts()[0].GetPair(), " ", resp.GetConflicts()[0].GetPairEpoch()))
	require.Equal(t, []string{"b"}, resp.GetMissingPairs())
	require.Equal(t, []string{"key \uFFFD"}, resp.GetMalformed())
}

// state is the state of a pair in its log.
type state struct {
	mu sync.Mutex
	fleet.PairState
}

func (s *state) get() fleet.PairState {
	if s == nil {
		return fleet.PairState{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.PairState
}

// newDirectory creates a directory. With a nil client, no requests are possible.
func newDirectory(t *testing.T, client *clientv3.Client, pair string, s *state) *fleet.Directory {
	t.Helper()
	if client == nil {
		client = new(clientv3.Client)
	}
	d, err := fleet.New(fleet.Options{
		Client: client, Pair: pair, PairID: "id-" + pair, State: s.get, RequestTimeout: time.Minute, LoadTTL: time.Hour,
	})
	require.NoError(t, err)
	return d
}

// join joins the fleet with the given queues, and keeps the copy of the directory current.
func join(t *testing.T, client *clientv3.Client, pair string, queues map[string]uint64) *fleet.Directory {
	t.Helper()
	s := &state{PairState: fleet.PairState{Term: 1}}
	d := newDirectory(t, client, pair, s)
	id, _, err := d.Join(t.Context(), fleet.Member{
		Addresses: []string{pair + "-1:7420"}, Labels: map[string]string{"region": "eu"}, CapacityBytes: 7,
	}, func(context.Context) (iter.Seq2[string, uint64], error) { return maps.All(queues), nil })
	require.NoError(t, err)
	s.mu.Lock()
	s.FleetID = id
	s.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return d
}

func await(t *testing.T, d *fleet.Directory, fulfilled func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	require.NoError(t, d.Await(ctx, func(fleet.Status) bool { return fulfilled() }))
}

// The service reads the copy, and writes rules and states. The test uses a real etcd.
func TestDirectory(t *testing.T) {
	etcd := coordtest.StartEtcd(t, t.TempDir(), "")
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	client, err := clientv3.New(clientv3.Config{Endpoints: etcd.Endpoints(), Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	a := join(t, client, "a", map[string]uint64{"q1": 0, "q2": 0, "orders": 0})
	b := join(t, client, "b", map[string]uint64{"q3": 0})
	require.NoError(t, b.PutLoad(t.Context(), fleet.Load{Queues: 1, StoredBytes: 2, FreeBytes: 3, PublishRate: 4.5}))
	await(t, a, func() bool { pairs := a.Pairs(); return len(pairs) == 2 && pairs[1].Live && a.Status().Queues == 4 })
	m := &manager{directory: a, member: member.Status{Active: true, Left: true, Err: errors.New("no")}}
	s := newService(m, "a")

	ctx := t.Context()
	_, err = s.PutPlacementRule(ctx, &pb.PutPlacementRuleRequest{Rule: &pb.PlacementRule{Pattern: "x*", Pair: "b"}})
	require.NoError(t, err)
	_, err = s.PutPlacementRule(ctx, &pb.PutPlacementRuleRequest{Rule: &pb.PlacementRule{
		Pattern: "y*", Labels: map[string]string{"region": "eu"},
	}})
	require.NoError(t, err)
	_, err = s.SetPairState(ctx, &pb.SetPairStateRequest{Pair: "b", State: pb.PairState_PAIR_STATE_DRAINING})
	require.NoError(t, err)
	await(t, a, func() bool { return len(a.Rules()) == 2 && a.Pairs()[1].State == fleet.StateDraining })
	resp, err := s.GetFleet(ctx, &pb.GetFleetRequest{})
	require.NoError(t, err)
	require.Equal(t, "a", resp.GetPair())
	d := resp.GetDirectory()
	require.True(t, d.GetLoaded() && d.GetCurrent())
	require.NotEmpty(t, d.GetFleetId())
	require.Equal(t, pb.DirectoryProblem_DIRECTORY_PROBLEM_UNSPECIFIED, d.GetProblem())
	require.EqualValues(t, 4, d.GetQueues())
	require.EqualValues(t, 4, d.GetLastEpoch())
	require.True(t, resp.GetMembership().GetLeft())
	require.Equal(t, "no", resp.GetMembership().GetError())
	p := resp.GetPairs()[1]
	require.Equal(t, "b", p.GetName())
	require.Equal(t, "id-b", p.GetPairId())
	require.Equal(t, []string{"b-1:7420"}, p.GetAddresses())
	require.Equal(t, pb.PairState_PAIR_STATE_DRAINING, p.GetState())
	require.Equal(t, map[string]string{"region": "eu"}, p.GetLabels())
	require.EqualValues(t, 7, p.GetCapacityBytes())
	require.EqualValues(t, 1, p.GetQueues())
	require.InDelta(t, 4.5, p.GetLoad().GetPublishRate(), 0)
	require.False(t, resp.GetPairs()[0].GetLive())
	require.Nil(t, resp.GetPairs()[0].GetLoad())
	require.Equal(t, "b", resp.GetRules()[0].GetPair())
	require.Equal(t, map[string]string{"region": "eu"}, resp.GetRules()[1].GetLabels())

	_, err = s.DeletePlacementRule(ctx, &pb.DeletePlacementRuleRequest{Pattern: "x*"})
	require.NoError(t, err)
	_, err = s.SetPairState(ctx, &pb.SetPairStateRequest{Pair: "b", State: pb.PairState_PAIR_STATE_OPEN})
	require.NoError(t, err)
	await(t, a, func() bool { return len(a.Rules()) == 1 && a.Pairs()[1].State == fleet.StateOpen })
	testPages(t, s)
	testInvalid(t, s)
	testForeignKeys(t, s, a, client)
}

// pages returns the names of the queues on each page.
func pages(t *testing.T, s *rpc.Service, req *pb.ListPlacementsRequest) (all [][]string) {
	t.Helper()
	for {
		resp, err := s.ListPlacements(t.Context(), req)
		require.NoError(t, err)
		require.True(t, resp.GetCurrent())
		page := []string{}
		for _, p := range resp.GetPlacements() {
			require.NotZero(t, p.GetEpoch())
			page = append(page, p.GetPair()+" "+p.GetQueue())
		}
		all = append(all, page)
		if req.After = resp.GetNextAfter(); req.GetAfter() == "" {
			return all
		}
	}
}

func testPages(t *testing.T, s *rpc.Service) {
	t.Helper()
	require.Equal(t, [][]string{{"a orders", "a q1", "a q2", "b q3"}}, pages(t, s, &pb.ListPlacementsRequest{}))
	require.Equal(t, [][]string{{"a orders", "a q1", "a q2"}, {"b q3"}}, pages(t, s, &pb.ListPlacementsRequest{Limit: 3}))
	require.Equal(t, [][]string{{"a orders", "a q1"}, {"a q2", "b q3"}, {}},
		pages(t, s, &pb.ListPlacementsRequest{Limit: 2}))
	require.Equal(t, [][]string{{"b q3"}}, pages(t, s, &pb.ListPlacementsRequest{Pair: "b"}))
	require.Equal(t, [][]string{{"a q1"}, {"a q2"}, {}}, pages(t, s, &pb.ListPlacementsRequest{
		Pair: "a", Pattern: "q*", Limit: 1,
	}))
	require.Equal(t, [][]string{{}}, pages(t, s, &pb.ListPlacementsRequest{Pattern: "z?"}))
}

// Keys in etcd that are invalid protobuf strings do not end the list, even if a whole page consists of them.
func testForeignKeys(t *testing.T, s *rpc.Service, d *fleet.Directory, client *clientv3.Client) {
	t.Helper()
	entries, err := client.Get(t.Context(), "", clientv3.WithPrefix())
	require.NoError(t, err)
	i := slices.IndexFunc(entries.Kvs, func(kv *mvccpb.KeyValue) bool { return bytes.HasSuffix(kv.Key, []byte("/q1")) })
	require.GreaterOrEqual(t, i, 0)
	prefix := strings.TrimSuffix(string(entries.Kvs[i].Key), "q1")
	for _, name := range []string{"\xff", "p\xff1", "p\xff2", "p\xff3", "r\xff"} {
		_, err := client.Put(t.Context(), prefix+name, string(entries.Kvs[i].Value))
		require.NoError(t, err)
	}
	await(t, d, func() bool { return d.Status().Queues == 9 })
	for limit := range 5 {
		all := pages(t, s, &pb.ListPlacementsRequest{Limit: uint32(limit)})
		require.Equal(t, []string{"a orders", "a q1", "a q2", "b q3"}, slices.Concat(all...), "limit %d", limit)
	}
}

func testInvalid(t *testing.T, s *rpc.Service) {
	t.Helper()
	ctx, long := t.Context(), string(make([]byte, 256))
	for _, req := range []*pb.ListPlacementsRequest{{Limit: 10_001}, {Pattern: long}} {
		_, err := s.ListPlacements(ctx, req)
		require.Equal(t, "INVALID", reasonOf(t, err))
	}
	for _, rule := range []*pb.PlacementRule{
		nil, {Pattern: "x"}, {Pattern: long, Pair: "a"}, {Pattern: "x", Pair: "a", Labels: map[string]string{"k": "v"}},
	} {
		_, err := s.PutPlacementRule(ctx, &pb.PutPlacementRuleRequest{Rule: rule})
		require.Equal(t, "INVALID", reasonOf(t, err))
	}
	for _, pattern := range []string{"", long} {
		_, err := s.DeletePlacementRule(ctx, &pb.DeletePlacementRuleRequest{Pattern: pattern})
		require.Equal(t, "INVALID", reasonOf(t, err))
	}
	for _, state := range []pb.PairState{pb.PairState_PAIR_STATE_UNSPECIFIED, pb.PairState_PAIR_STATE_JOINING} {
		_, err := s.SetPairState(ctx, &pb.SetPairStateRequest{Pair: "a", State: state})
		require.Equal(t, "INVALID", reasonOf(t, err))
	}
	_, err := s.SetPairState(ctx, &pb.SetPairStateRequest{Pair: "x", State: pb.PairState_PAIR_STATE_OPEN})
	require.Equal(t, "FLEET_STATE", reasonOf(t, err))
}
