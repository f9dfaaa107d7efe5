// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"

	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/nodes"
	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/fleet/balance"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// member is a node of a fleet of pairs with one node each.
type member struct {
	pb.UnimplementedAdminServiceServer
	pb.UnimplementedFleetServiceServer
	pb.UnimplementedQueueServiceServer

	*members

	name string
}

type members struct {
	mu       sync.Mutex // guards all fields
	pairs    []*pb.FleetPair
	rules    []*pb.PlacementRule
	owner    map[string]string
	queues   []*pb.Queue
	pageSize int // of ListQueues; 0 means no limit
	policies []*pb.QueuePolicy
	prepared []*pb.PreparedTransaction
	// canceled are queues with moves that are canceled, and refused are queues with moves that do not begin.
	canceled, refused []string
	// denied are queues on which the operator has no right.
	denied []string
	moves  []*pb.FleetMove
	left   bool
}

func (m *member) GetStatus(context.Context, *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	return &pb.GetStatusResponse{Role: pb.Role_ROLE_ACTIVE}, nil
}

func (m *member) WatchStatus(_ *pb.WatchStatusRequest, s grpc.ServerStreamingServer[pb.WatchStatusResponse]) error {
	if err := s.Send(&pb.WatchStatusResponse{Status: &pb.GetStatusResponse{Role: pb.Role_ROLE_ACTIVE}}); err != nil {
		return err
	}
	<-s.Context().Done()
	return nil
}

func (m *member) GetFleet(context.Context, *pb.GetFleetRequest) (*pb.GetFleetResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &pb.GetFleetResponse{Pairs: slices.Clone(m.pairs), Rules: slices.Clone(m.rules)}, nil
}

func (m *member) ListPlacements(
	_ context.Context, r *pb.ListPlacementsRequest,
) (*pb.ListPlacementsResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	resp := &pb.ListPlacementsResponse{Current: true}
	for name, pair := range m.owner {
		if r.GetPair() == "" || pair == r.GetPair() {
			resp.Placements = append(resp.Placements, &pb.Placement{Queue: name, Pair: pair})
		}
	}
	return resp, nil
}

// ListQueues returns the queues of the pair. Pair b has all queues without an owner.
func (m *member) ListQueues(_ context.Context, r *pb.ListQueuesRequest) (*pb.ListQueuesResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var queues []*pb.Queue
	for _, q := range m.queues {
		if slices.Contains(m.denied, q.GetName()) {
			continue
		}
		if owner := m.owner[q.GetName()]; owner == m.name || owner == "" && m.name == "b" {
			queues = append(queues, q)
		}
	}
	resp := &pb.ListQueuesResponse{Total: uint32(len(queues)), Queues: queues[min(int(r.GetOffset()), len(queues)):]}
	if m.pageSize > 0 {
		resp.Queues = resp.GetQueues()[:min(len(resp.GetQueues()), m.pageSize)]
	}
	return resp, nil
}

func (m *member) GetQueue(_ context.Context, r *pb.GetQueueRequest) (*pb.GetQueueResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if slices.Contains(m.denied, r.GetName()) {
		return nil, status.Error(codes.PermissionDenied, "denied")
	}
	return nil, status.Error(codes.NotFound, "no such queue")
}

func (m *member) ListPolicies(context.Context, *pb.ListPoliciesRequest) (*pb.ListPoliciesResponse, error) {
	return &pb.ListPoliciesResponse{Policies: m.policies}, nil
}

func (m *member) ListPrepared(context.Context, *pb.ListPreparedRequest) (*pb.ListPreparedResponse, error) {
	return &pb.ListPreparedResponse{Transactions: m.prepared}, nil
}

// MoveQueues executes or cancels a move immediately.
func (m *member) MoveQueues(_ context.Context, r *pb.MoveQueuesRequest) (*pb.MoveQueuesResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	contains := func(names []string) bool {
		return slices.ContainsFunc(r.GetQueues(), func(name string) bool { return slices.Contains(names, name) })
	}
	if contains(m.refused) {
		return nil, status.Error(codes.InvalidArgument, "refused")
	}
	move := &pb.FleetMove{
		Epoch: uint64(1 + len(m.moves)), From: "b", To: m.name, Queues: r.GetQueues(), Phase: pb.MovePhase_MOVE_PHASE_DONE,
	}
	if contains(m.canceled) {
		move.Phase, move.Error = pb.MovePhase_MOVE_PHASE_NOT_MOVED, "in use"
	} else {
		for _, name := range r.GetQueues() {
			m.owner[name] = m.name
		}
	}
	m.moves = append(m.moves, move)
	return &pb.MoveQueuesResponse{Epoch: move.GetEpoch()}, nil
}

func (m *member) ListMoves(context.Context, *pb.ListMovesRequest) (*pb.ListMovesResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	resp := &pb.ListMovesResponse{Current: true}
	for _, move := range m.moves {
		unfinished := move.GetPhase() < pb.MovePhase_MOVE_PHASE_DONE
		if unfinished || move.GetTo() == m.name {
			resp.Moves = append(resp.Moves, move)
		}
	}
	return resp, nil
}

func (m *member) LeaveFleet(context.Context, *pb.LeaveFleetRequest) (*pb.LeaveFleetResponse, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left = true
	return &pb.LeaveFleetResponse{}, nil
}

// drained is pair b of a fleet, which is being deleted.
type drained struct {
	*PairReconciler
	*members

	pair *v1alpha1.LockstepPair
}

func newDrained(t *testing.T, queues ...*pb.Queue) *drained {
	t.Helper()
	m := &members{owner: map[string]string{}, queues: queues}
	m.pairs = []*pb.FleetPair{openPair("a"), openPair("b")}
	m.pairs[1].State = pb.PairState_PAIR_STATE_DRAINING
	for _, q := range queues {
		m.owner[q.GetName()] = "b"
	}
	listeners := map[string]*bufconn.Listener{}
	for _, name := range []string{"a", "b", "c"} {
		l, s, n := bufconn.Listen(1<<16), grpc.NewServer(), &member{members: m, name: name}
		pb.RegisterAdminServiceServer(s, n)
		pb.RegisterFleetServiceServer(s, n)
		pb.RegisterQueueServiceServer(s, n)
		go func() { _ = s.Serve(l) }()
		t.Cleanup(s.Stop)
		listeners[name] = l
	}
	dial := grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		if l := listeners[strings.TrimSuffix(address, ":1")]; l != nil {
			return l.DialContext(ctx)
		}
		return listeners["b"].DialContext(ctx)
	})
	pair := &v1alpha1.LockstepPair{ObjectMeta: metav1.ObjectMeta{Name: "shop-b", Namespace: "data"}}
	pair.Spec.TLS.Mode, pair.Spec.Fleet.Pair = "none", "b"
	pair.Status.Drain = &v1alpha1.DrainStatus{Phase: phaseDraining}
	r := &PairReconciler{
		Nodes: &nodes.Dialer{Options: []grpc.DialOption{dial}}, Events: events.NewFakeRecorder(1000),
	}
	return &drained{r, m, pair}
}

// steps executes a number of steps, and returns the error of the last one.
func (d *drained) steps(t *testing.T, n int) (err error) {
	t.Helper()
	o := &observed{}
	o.conn, err = d.Nodes.Open(t.Context(), d.pair)
	require.NoError(t, err)
	defer o.close()
	node, err := o.conn.Node(0)
	require.NoError(t, err)
	for range n {
		_, err = d.leave(t.Context(), d.pair, o, node)
	}
	return err
}

// blocked returns the blocked queues in the status, with their reasons.
func (d *drained) blocked() map[string]string {
	reasons := map[string]string{}
	for _, b := range d.pair.Status.Drain.Blocked {
		reasons[b.Queue] = b.Reason
	}
	return reasons
}

const gib = 1 << 30

// openPair returns a pair with 100 GiB of free space.
func openPair(name string) *pb.FleetPair {
	return &pb.FleetPair{
		Name: name, State: pb.PairState_PAIR_STATE_OPEN, Live: true, Addresses: []string{name + ":1"},
		Load: &pb.PairLoad{FreeBytes: 100 * gib},
	}
}

func queueNamed(name string) *pb.Queue { return &pb.Queue{Name: name, Config: &pb.QueueConfig{}} }

// Queues move together with the dead-letter queues of their subscriptions, and without those of policies.
func TestDrainLinks(t *testing.T) {
	orders, dead, inherits := queueNamed("orders"), "z.dead", queueNamed("inherits")
	orders.Subscriptions = []*pb.Subscription{{Name: "s", Redelivery: &pb.RedeliveryPolicy{DeadLetter: &dead}}}
	inherits.Config.DeadLetter = "policy.dead"
	inherits.Sources = &pb.QueueSources{Own: &pb.QueueConfig{}, Policy: "inh*"}
	queues := []*pb.Queue{inherits, orders, queueNamed(dead), queueNamed("policy.dead"), queueNamed("prepared")}
	for range fleet.MaxMoveQueues { // more than a move between orders and its dead-letter queue
		queues = append(queues, queueNamed("orders."+string(rune('A'+len(queues)))))
	}
	d := newDrained(t, queues...)
	d.policies = []*pb.QueuePolicy{{Pattern: "inh*", Defaults: &pb.QueueConfig{DeadLetter: "policy.dead"}}}
	d.prepared = []*pb.PreparedTransaction{{Xid: "x1", Lsn: 1, Queues: []*pb.PreparedQueue{{Queue: "prepared"}}}}
	require.Error(t, d.steps(t, 3))
	require.Equal(t, map[string]string{
		"policy.dead": string(balance.PolicyDeadLetter), "prepared": string(balance.Prepared),
	}, d.blocked())
	require.Equal(t, int64(2), d.pair.Status.Drain.Queues)
	for _, m := range d.moves {
		require.Equal(t, slices.Contains(m.GetQueues(), "orders"), slices.Contains(m.GetQueues(), dead))
	}
	require.False(t, d.left)
}

// A queue that cannot be moved does not prevent the moves of the others, and is in the status.
func TestDrainBlocked(t *testing.T) {
	for name, block := range map[string]func(d *drained){
		"canceled": func(d *drained) { d.canceled = []string{"b"} },
		"refused":  func(d *drained) { d.refused = []string{"b"} },
		"not assigned": func(d *drained) {
			delete(d.owner, "b")
			d.refused = []string{"b"}
		},
		"denied":        func(d *drained) { d.denied = []string{"b"} },
		"being created": func(d *drained) { d.owner["created"], d.refused = "b", []string{"b", "created"} },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDrained(t, queueNamed("a"), queueNamed("b"), queueNamed("c"))
			block(d)
			err := d.steps(t, 8)
			require.Error(t, err)
			require.NotErrorIs(t, err, errWait)
			reason := balance.Failed
			switch name {
			case "not assigned":
				reason = notAssigned
			case "denied":
				reason = balance.AccessDenied
			}
			require.Equal(t, map[string]string{"b": string(reason)}, d.blocked())
			require.Equal(t, "a", d.owner["a"])
			require.Equal(t, "a", d.owner["c"])
			require.False(t, d.left)
			d.canceled, d.refused, d.denied = nil, nil, nil
			delete(d.owner, "created")
			d.owner["b"] = "b"
			require.NoError(t, d.steps(t, 3))
			require.Empty(t, d.blocked())
			require.True(t, d.left)
		})
	}
}

// Queues move only to pairs that their placement rules permit.
func TestDrainRules(t *testing.T) {
	d := newDrained(t, queueNamed("any"), queueNamed("eu.1"), queueNamed("eu.2"), queueNamed("here"), queueNamed("lost"))
	c := openPair("c")
	c.Labels, c.Load.FreeBytes = map[string]string{"region": "eu"}, 50*gib
	d.pairs = append(d.pairs, c)
	d.rules = []*pb.PlacementRule{
		{Pattern: "eu.*", Labels: map[string]string{"region": "eu"}},
		{Pattern: "here", Pair: "b"},
		{Pattern: "lost", Pair: "x"},
	}
	require.Error(t, d.steps(t, 5))
	require.Equal(t, map[string]string{"any": "a", "eu.1": "c", "eu.2": "c", "here": "b", "lost": "b"}, d.owner)
	require.Equal(t, map[string]string{
		"here": string(balance.Forbidden), "lost": string(balance.Forbidden),
	}, d.blocked())
	require.False(t, d.left)
	d.rules = nil
	require.NoError(t, d.steps(t, 3))
	require.Empty(t, d.blocked())
	require.True(t, d.left)
}

// A target keeps a tenth of its space free, also if its load does not include the last moves yet.
func TestDrainSpace(t *testing.T) {
	old, large, small := queueNamed("old"), queueNamed("large"), queueNamed("small")
	old.Bytes, large.Bytes, small.Bytes = 40*gib, 50*gib, gib
	d := newDrained(t, old, large, small)
	d.owner["old"] = "a"
	d.pairs[0].Load = &pb.PairLoad{StoredBytes: 40 * gib, FreeBytes: 60 * gib} // 51 GiB would leave 9 GiB free
	require.Error(t, d.steps(t, 3))
	require.Equal(t, map[string]string{"old": "a", "large": "a", "small": "b"}, d.owner, "the load is outdated")
	require.Equal(t, map[string]string{"small": string(balance.NoSpace)}, d.blocked())
	d.pairs = append(d.pairs, openPair("c"))
	d.pairs[2].Load.FreeBytes = 0
	require.Error(t, d.steps(t, 3))
	require.Equal(t, "b", d.owner["small"])
	d.pairs[2].Load.FreeBytes = 10 * gib
	require.NoError(t, d.steps(t, 3))
	require.Equal(t, "c", d.owner["small"])
	require.True(t, d.left)
}

// Without another open and live pair, the drain waits.
func TestDrainWithoutTargets(t *testing.T) {
	d := newDrained(t, queueNamed("q"))
	d.pairs[0].Live = false
	require.ErrorIs(t, d.steps(t, 1), errWait)
	require.Equal(t, map[string]string{"q": string(balance.NoPair)}, d.blocked())
	d.pairs[0].Live = true
	require.NoError(t, d.steps(t, 3))
	require.True(t, d.left)
}

// A page can have fewer queues than requested, although others follow.
func TestDrainPages(t *testing.T) {
	first, last := queueNamed("first"), queueNamed("last")
	first.Config.DeadLetter = "last"
	d := newDrained(t, first, queueNamed("middle"), last)
	d.pageSize = 1
	require.NoError(t, d.steps(t, 3))
	require.Len(t, d.moves, 1)
	require.True(t, d.left)
}

// A target receives one move at a time, and queues that are being moved do not move with others.
func TestDrainOneMove(t *testing.T) {
	d := newDrained(t, queueNamed("moving"), queueNamed("other"))
	d.moves = []*pb.FleetMove{
		{Epoch: 1, From: "b", To: "a", Queues: []string{"moving"}, Phase: pb.MovePhase_MOVE_PHASE_COPYING},
	}
	require.ErrorIs(t, d.steps(t, 3), errWait)
	require.Len(t, d.moves, 1)
	require.Empty(t, d.blocked())
	d.pairs = append(d.pairs, openPair("c"))
	require.ErrorIs(t, d.steps(t, 3), errWait)
	require.Equal(t, map[string]string{"moving": "b", "other": "c"}, d.owner)
}
