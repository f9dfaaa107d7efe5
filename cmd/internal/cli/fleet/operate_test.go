// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// world is the common state of the fake nodes of a fleet.
type world struct {
	mu     sync.Mutex // guards all fields
	pairs  []*pb.FleetPair
	owner  map[string]string // pair of each queue
	group  map[string]string
	queues map[string]*pb.Queue
	// policies and prepared are those of all pairs.
	policies []*pb.QueuePolicy
	prepared []*pb.PreparedTransaction
	// canceled contains the queues with moves that are canceled.
	canceled map[string]bool
	// slow contains the queues with moves that do not end.
	slow  map[string]bool
	moves []*pb.FleetMove
	// hidden contains the queues on which the caller has no right.
	hidden   map[string]bool
	pageSize int // of ListQueues; 0 means no limit
}

// end ends the slow moves.
func (w *world) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.moves {
		if m.GetPhase() == pb.MovePhase_MOVE_PHASE_COPYING {
			m.Phase = pb.MovePhase_MOVE_PHASE_DONE
		}
	}
}

// begun reports whether a move has begun.
func (w *world) begun() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.moves) > 0
}

func (w *world) fleet(f *pb.GetFleetResponse) *pb.GetFleetResponse {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := proto.CloneOf(f)
	out.Pairs = nil
	for _, p := range w.pairs {
		p = proto.CloneOf(p)
		p.Queues = 0
		for _, pair := range w.owner {
			if pair == p.GetName() {
				p.Queues++
			}
		}
		out.Pairs = append(out.Pairs, p)
	}
	return out
}

func (w *world) placements() *pb.ListPlacementsResponse {
	w.mu.Lock()
	defer w.mu.Unlock()
	resp := &pb.ListPlacementsResponse{Current: true}
	for name, pair := range w.owner {
		resp.Placements = append(resp.Placements, &pb.Placement{Queue: name, Pair: pair, Group: w.group[name]})
	}
	slices.SortFunc(resp.GetPlacements(), func(a, b *pb.Placement) int {
		return strings.Compare(a.GetQueue(), b.GetQueue())
	})
	return resp
}

func (n *node) ListQueues(_ context.Context, r *pb.ListQueuesRequest) (*pb.ListQueuesResponse, error) {
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	var queues []*pb.Queue
	for _, name := range slices.Sorted(maps.Keys(n.world.queues)) {
		if n.world.owner[name] == n.fleet.GetPair() && !n.world.hidden[name] {
			queues = append(queues, n.world.queues[name])
		}
	}
	resp := &pb.ListQueuesResponse{Total: uint32(len(queues)), Queues: queues[min(int(r.GetOffset()), len(queues)):]}
	if size := n.world.pageSize; size > 0 {
		resp.Queues = resp.GetQueues()[:min(len(resp.GetQueues()), size)]
	}
	return proto.CloneOf(resp), nil
}

func (n *node) GetQueue(_ context.Context, r *pb.GetQueueRequest) (*pb.GetQueueResponse, error) {
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	if n.world.hidden[r.GetName()] {
		return nil, errorOf(pb.ErrorReason_ERROR_REASON_DENIED)
	}
	return nil, errorOf(pb.ErrorReason_ERROR_REASON_QUEUE_NOT_FOUND)
}

func (n *node) ListPolicies(context.Context, *pb.ListPoliciesRequest) (*pb.ListPoliciesResponse, error) {
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	return proto.CloneOf(&pb.ListPoliciesResponse{Policies: n.world.policies}), nil
}

func (n *node) ListPrepared(context.Context, *pb.ListPreparedRequest) (*pb.ListPreparedResponse, error) {
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	return proto.CloneOf(&pb.ListPreparedResponse{Transactions: n.world.prepared}), nil
}

// MoveQueues executes a move immediately.
func (n *node) MoveQueues(_ context.Context, r *pb.MoveQueuesRequest) (*pb.MoveQueuesResponse, error) {
	w := n.world
	w.mu.Lock()
	defer w.mu.Unlock()
	m := &pb.FleetMove{
		Epoch: uint64(100 + len(w.moves)), From: w.owner[r.GetQueues()[0]], To: n.fleet.GetPair(), Queues: r.GetQueues(),
		Phase: pb.MovePhase_MOVE_PHASE_DONE,
	}
	if slices.ContainsFunc(r.GetQueues(), func(name string) bool { return w.canceled[name] }) {
		m.Phase, m.Error = pb.MovePhase_MOVE_PHASE_NOT_MOVED, "queue in use"
	}
	if slices.ContainsFunc(r.GetQueues(), func(name string) bool { return w.slow[name] }) {
		m.Phase = pb.MovePhase_MOVE_PHASE_COPYING
	}
	w.moves = append(w.moves, m)
	for _, name := range r.GetQueues() {
		if m.GetPhase() != pb.MovePhase_MOVE_PHASE_DONE {
			break
		}
		for _, p := range w.pairs {
			size := w.queues[name].GetBytes()
			switch p.GetName() {
			case m.GetFrom():
				p.Load.StoredBytes, p.Load.FreeBytes = p.GetLoad().GetStoredBytes()-size, p.GetLoad().GetFreeBytes()+size
			case m.GetTo():
				p.Load.StoredBytes, p.Load.FreeBytes = p.GetLoad().GetStoredBytes()+size, p.GetLoad().GetFreeBytes()-size
			}
		}
		w.owner[name] = m.GetTo()
	}
	return &pb.MoveQueuesResponse{Epoch: m.GetEpoch(), From: m.GetFrom(), Queues: m.GetQueues()}, nil
}

func (n *node) ListMoves(context.Context, *pb.ListMovesRequest) (*pb.ListMovesResponse, error) {
	resp := &pb.ListMovesResponse{Current: true}
	if n.world == nil {
		resp.Moves = n.moves.GetMoves()
		return resp, nil
	}
	n.world.mu.Lock()
	defer n.world.mu.Unlock()
	for _, m := range n.world.moves {
		if m.GetTo() == n.fleet.GetPair() {
			resp.Moves = append(resp.Moves, proto.CloneOf(m))
		}
	}
	return resp, nil
}

// startWorld returns a fleet with two pairs. Pair a has more messages.
func startWorld(t *testing.T) (fleet, *world) {
	t.Helper()
	const gib = 1 << 30
	f := startFleet(t)
	w := &world{owner: map[string]string{}, group: map[string]string{}, queues: map[string]*pb.Queue{}}
	for i, p := range f.a.fleet.GetPairs() {
		p.State, p.Load = pb.PairState_PAIR_STATE_OPEN, &pb.PairLoad{StoredBytes: 80 * gib, FreeBytes: 20 * gib}
		if i == 1 {
			p.Load = &pb.PairLoad{StoredBytes: 20 * gib, FreeBytes: 80 * gib}
		}
		w.pairs = append(w.pairs, p)
	}
	for name, size := range map[string]uint64{
		"orders": 25 * gib, "dead": gib, "large": 30 * gib, "small": 2 * gib, "pinned": 20 * gib, "policy.dead": gib,
	} {
		w.owner[name], w.queues[name] = "a", &pb.Queue{Name: name, Bytes: size, Config: &pb.QueueConfig{}}
	}
	w.queues["orders"].Config.DeadLetter = "dead"
	w.policies = []*pb.QueuePolicy{{Pattern: "x*", Defaults: &pb.QueueConfig{DeadLetter: "policy.dead"}}}
	for _, n := range []*node{f.a, f.b} {
		n.world = w
		n.fleet.Rules = []*pb.PlacementRule{{Pattern: "pinned", Pair: "a"}}
	}
	return f, w
}

func TestRebalance(t *testing.T) {
	f, w := startWorld(t)
	c := f.a.cli(t)
	golden.Text(t, "rebalance.txt", c.OK("fleet", "rebalance", "--dry-run")+c.OK("fleet", "rebalance", "--dry-run", "-o",
		"json"))
	_, _, code := c.Run("", "fleet", "rebalance")
	require.Equal(t, cli.ExitError, code, "no confirmation")
	require.Empty(t, w.moves)
	require.Equal(t, "done", c.Lines("fleet", "rebalance", "--yes")[0]["results"].([]any)[0].(map[string]any)["phase"])
	require.Len(t, w.moves, 1)
	require.Equal(t, []string{"large"}, w.moves[0].GetQueues())
	require.Empty(t, c.Lines("fleet", "rebalance", "--yes")[0]["moves"], "the loads are equal")
	require.Len(t, w.moves, 1)

	w.canceled = map[string]bool{"orders": true}
	w.pairs[0].Load.StoredBytes, w.pairs[0].Load.FreeBytes = 90<<30, 10<<30
	stdout, _, code := c.Run("", "fleet", "rebalance", "--yes", "--threshold", "5", "--max-moves", "1", "-o", "json")
	require.Equal(t, cli.ExitError, code)
	result := decode(t, stdout)["results"].([]any)[0].(map[string]any)
	require.NotEmpty(t, result["error"])
	require.Equal(t, "not-moved", result["phase"])
	for _, args := range [][]string{{"--threshold", "0"}, {"--max-moves", "-1"}, {"x"}} {
		_, _, code := c.Run("", append([]string{"fleet", "rebalance"}, args...)...)
		require.Equal(t, cli.ExitUsage, code, args)
	}
	f.a.fleet.Directory.Current, f.b.fleet.Directory.Current = false, false
	_, _, code = c.Run("", "fleet", "rebalance", "--yes")
	require.Equal(t, cli.ExitError, code)
}

func TestDrainMove(t *testing.T) {
	f, w := startWorld(t)
	c := f.a.cli(t)
	w.pairs[1].Load.FreeBytes = 200 << 30
	w.queues["bad"], w.owner["bad"] = &pb.Queue{Name: "bad", Bytes: 5}, "a"
	w.queues["busy"], w.owner["busy"] = &pb.Queue{Name: "busy"}, "a"
	w.prepared = []*pb.PreparedTransaction{{Xid: "tx1", Lsn: 1, Queues: []*pb.PreparedQueue{{Queue: "busy"}}}}
	w.canceled = map[string]bool{"bad": true}
	plan := c.OK("fleet", "drain", "a", "--move", "--dry-run")
	require.Nil(t, f.a.state)
	stdout, stderr, code := c.Run("", "fleet", "drain", "a", "--move", "--yes")
	require.Equal(t, cli.ExitError, code, stderr)
	require.Equal(t, pb.PairState_PAIR_STATE_DRAINING, f.a.state.GetState())
	golden.Text(t, "drain_move.txt", plan+"\n"+stdout)
	owners := map[string]string{
		"orders": "b", "dead": "b", "large": "b", "small": "b", "bad": "a", "busy": "a", "pinned": "a", "policy.dead": "a",
	}
	require.Equal(t, owners, w.owner)

	w.canceled, w.prepared, w.policies = nil, nil, nil
	f.a.fleet.Rules, f.b.fleet.Rules = nil, nil
	v := c.Lines("fleet", "drain", "a", "--move", "--yes", "--wait", "--to", "b")[0]
	require.InDelta(t, 0, v["queues"], 0)
	require.Nil(t, v["left"])
	for name := range owners {
		require.Equal(t, "b", w.owner[name])
	}
	c.OK("fleet", "drain", "a", "--wait")
	c.OK("fleet", "drain", "a", "--move", "--yes")

	for _, args := range [][]string{{"a", "--to", "b"}, {"a", "--dry-run"}, {"a", "--move", "--to", "a"}} {
		_, _, code := c.Run("", append([]string{"fleet", "drain"}, args...)...)
		require.Equal(t, cli.ExitUsage, code, args)
	}
	_, _, code = c.Run("", "fleet", "drain", "a", "--move", "--to", "x")
	require.Equal(t, cli.ExitError, code)
	w.pairs[0].Live = false
	_, _, code = c.Run("", "fleet", "drain", "a", "--move", "--yes")
	require.Equal(t, cli.ExitError, code, "the pair is not live")
}

// Queues on which the caller has no right remain on the pair, with a reason. A queue that was deleted in the meantime
// does not count.
func TestDrainDeniedQueues(t *testing.T) {
	f, w := startWorld(t)
	c := f.a.cli(t)
	w.pairs[1].Load.FreeBytes = 200 << 30
	w.policies, w.owner["deleted"] = nil, "a"
	f.a.fleet.Rules, f.b.fleet.Rules = nil, nil
	w.hidden = map[string]bool{"orders": true, "small": true}
	drain := func() (queues any, left []any) {
		t.Helper()
		stdout, _, code := c.Run("", "fleet", "drain", "a", "--move", "--yes", "-o", "json")
		require.Equal(t, cli.ExitError, code)
		v := decode(t, stdout)
		return v["queues"], v["left"].([]any)
	}
	for range 2 { // the second time, all remaining queues are hidden
		queues, left := drain()
		require.Equal(t, "b", w.owner["large"])
		require.InDelta(t, 2, queues, 0)
		require.Len(t, left, 2)
		for i, name := range []string{"orders", "small"} {
			group := left[i].(map[string]any)
			require.Equal(t, []any{name}, group["queues"])
			require.Equal(t, "access-denied", group["reason"])
			require.Equal(t, "a", w.owner[name])
		}
	}
	w.moves = []*pb.FleetMove{{
		Epoch: 200, From: "a", To: "b", Queues: []string{"small"}, Phase: pb.MovePhase_MOVE_PHASE_COPYING,
	}}
	plan := f.b.cli(t).Lines("fleet", "drain", "a", "--move", "--dry-run")[0]
	require.InDelta(t, 2, plan["queues"], 0)
	require.Len(t, plan["left"], 1, "another queue is being moved")
	w.moves, w.hidden = nil, nil
	require.InDelta(t, 0, c.Lines("fleet", "drain", "a", "--move", "--yes")[0]["queues"], 0)
}

// While no active node of the target responds, the command waits.
func TestMoveWaitsForTarget(t *testing.T) {
	f, w := startWorld(t)
	w.slow = map[string]bool{"small": true}
	setRole := func(role pb.Role) {
		f.b.mu.Lock()
		defer f.b.mu.Unlock()
		f.b.status.Role = role
	}
	steps := 0
	f.a.onFleet = func(resp *pb.GetFleetResponse) error {
		if !w.begun() {
			return nil
		}
		switch steps++; steps {
		case 1:
			return lost
		case 2:
			resp.Pairs, resp.Directory.Current = nil, false
		case 3:
			resp.Pairs, resp.Directory.Problem = nil, pb.DirectoryProblem_DIRECTORY_PROBLEM_LOST
		case 4:
			resp.Pairs, resp.Directory.Malformed = nil, []string{"key /x"}
		case 5:
			resp.Pairs, resp.Directory.Problem = nil, pb.DirectoryProblem_DIRECTORY_PROBLEM_NOT_MEMBER
		case 6:
			setRole(pb.Role_ROLE_STANDBY)
		case 7:
			setRole(pb.Role_ROLE_ACTIVE_ALONE)
			w.end()
		}
		return nil
	}
	v := f.a.cli(t).Lines("fleet", "move", "small", "--to", "b", "--wait")[0]
	require.Equal(t, "done", v["phase"])
	require.Equal(t, 7, steps)
}

// The command does not wait for a target that was removed from the fleet, or that denies access.
func TestMoveWithoutTarget(t *testing.T) {
	removed := func(resp *pb.GetFleetResponse) error {
		resp.Pairs = resp.GetPairs()[:1]
		return nil
	}
	refused := func(r pb.ErrorReason) func(*pb.GetFleetResponse) error {
		return func(*pb.GetFleetResponse) error { return errorOf(r) }
	}
	for name, tc := range map[string]struct {
		a, b func(*pb.GetFleetResponse) error
	}{
		"removed":     {a: removed},
		"denied":      {b: refused(pb.ErrorReason_ERROR_REASON_DENIED)},
		"denied by a": {a: refused(pb.ErrorReason_ERROR_REASON_DENIED)},
		"no fleet":    {a: refused(noFleet)},
	} {
		t.Run(name, func(t *testing.T) {
			f, w := startWorld(t)
			w.slow = map[string]bool{"small": true}
			for n, change := range map[*node]func(*pb.GetFleetResponse) error{f.a: tc.a, f.b: tc.b} {
				n.onFleet = func(resp *pb.GetFleetResponse) error {
					if change == nil || !w.begun() {
						return nil
					}
					return change(resp)
				}
			}
			_, _, code := f.a.cli(t).Run("", "fleet", "move", "small", "--to", "b", "--wait")
			require.Equal(t, cli.ExitError, code)
			require.True(t, w.begun())
		})
	}
}

// A page of queues can have fewer queues than requested, although others follow.
func TestDrainPages(t *testing.T) {
	f, w := startWorld(t)
	c := f.a.cli(t)
	plan := c.OK("fleet", "drain", "a", "--move", "--dry-run")
	w.pageSize = 1
	require.Equal(t, plan, c.OK("fleet", "drain", "a", "--move", "--dry-run"))
}

// twoNodes makes the nodes of the fleet the nodes of one pair: a is the active.
func twoNodes(f fleet) {
	record := &pb.PairStatus{PairId: "p", Config: 1, Nodes: []*pb.NodeStatus{
		{NodeId: "1", Name: "a-1", Address: f.a.address, Active: true, InSync: true},
		{NodeId: "2", Name: "a-2", Address: f.b.address, InSync: true},
	}}
	for i, n := range []*node{f.a, f.b} {
		n.fleet.Pair, n.fleet.Pairs = "a", []*pb.FleetPair{{
			Name: "a", Addresses: []string{f.a.address, f.b.address}, State: pb.PairState_PAIR_STATE_OPEN, Live: true,
		}}
		n.status = &pb.GetStatusResponse{
			Role: pb.Role_ROLE_ACTIVE, Node: record.GetNodes()[i], Pair: record, Version: "v0.3.0",
		}
	}
	f.b.status.Role = pb.Role_ROLE_STANDBY
}

// Switchover switches the roles of the nodes of twoNodes.
func (n *node) Switchover(context.Context, *pb.SwitchoverRequest) (*pb.SwitchoverResponse, error) {
	n.mu.Lock()
	n.switched++
	n.status.Role = pb.Role_ROLE_STANDBY
	other := n.peer
	n.mu.Unlock()
	other.mu.Lock()
	other.status.Role = pb.Role_ROLE_ACTIVE
	other.mu.Unlock()
	return &pb.SwitchoverResponse{}, nil
}

// The standby is upgraded first, then the roles are switched, and the other node is upgraded.
func TestUpgrade(t *testing.T) {
	f := startFleet(t)
	twoNodes(f)
	f.a.peer, f.b.peer = f.b, f.a
	c := f.both(t)
	step := func(args ...string) (string, int) {
		t.Helper()
		stdout, _, code := c.Run("", append([]string{"fleet", "upgrade", "--version", "0.4.0"}, args...)...)
		return strings.TrimSpace(f.masked(stdout)), code
	}
	golden.Text(t, "upgrade.txt", withoutRules(f.masked(c.OK("fleet", "upgrade", "--version", "0.4.0"))))
	golden.Text(t, "upgrade.jsonl", f.masked(c.OK("fleet", "upgrade", "--version", "v0.4.0", "-o", "json")))
	next, code := step("--next")
	require.Equal(t, "B", next)
	require.Equal(t, cli.ExitOK, code)
	_, code = step("--next", "--after", f.b.address)
	require.Equal(t, cli.ExitError, code, "the node runs the previous release")

	f.b.status.Version = "v0.4.0"
	next, code = step("--next", "--after", f.b.address)
	require.Equal(t, cli.ExitError, code, "a switchover is required")
	require.Empty(t, next)
	next, code = step("--next", "--switchover", "--after", f.b.address)
	require.Equal(t, cli.ExitOK, code)
	require.Equal(t, "A", next)
	require.Equal(t, 1, f.a.switched)

	f.a.status.Version = "v0.4.0"
	next, code = step("--next", "--wait", "--switchover", "--after", f.a.address)
	require.Equal(t, cli.ExitOK, code)
	require.Empty(t, next)
	require.Equal(t, 1, f.a.switched+f.b.switched)
	require.Equal(t, "none", c.Lines("fleet", "upgrade", "--version", "0.4.0")[0]["action"])
	_, _, code = c.Run("", "fleet", "upgrade", "--next")
	require.Equal(t, cli.ExitUsage, code)
}

// The next step must wait while a pair is not healthy.
func TestUpgradeGate(t *testing.T) {
	for name, change := range map[string]func(f fleet){
		"not in sync": func(f fleet) { f.a.status.GetPair().GetNodes()[1].InSync = false },
		"paused":      func(f fleet) { f.a.status.GetPair().Paused = &pb.Pause{} },
		"no active":   func(f fleet) { f.a.status.Role = pb.Role_ROLE_STANDBY },
		"unreachable": func(f fleet) { f.b.server.Stop() },
		"plan":        func(f fleet) { f.a.status.Plan = &pb.Plan{State: pb.PlanState_PLAN_STATE_WAITING} },
		"operation":   func(f fleet) { f.b.status.Maintenance = &pb.MaintenanceActivity{Operation: "rewrite"} },
		"condition": func(f fleet) {
			f.a.status.Alarms = []*pb.Alarm{{Kind: "disk-low"}}
		},
		"not live":  func(f fleet) { f.a.fleet.GetPairs()[0].Live = false },
		"directory": func(f fleet) { f.a.fleet.Directory.Problem = pb.DirectoryProblem_DIRECTORY_PROBLEM_LOST },
		"move": func(f fleet) {
			f.a.world = &world{pairs: f.a.fleet.GetPairs(), moves: []*pb.FleetMove{{To: "a", Epoch: 4}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t)
			twoNodes(f)
			change(f)
			stdout, _, code := f.a.cli(t).Run("", "fleet", "upgrade", "--version", "0.4.0", "-o", "json")
			require.Equal(t, cli.ExitError, code)
			v := decode(t, stdout)
			require.Equal(t, false, v["ready"])
			require.NotEmpty(t, v["problems"])
		})
	}
	f := startFleet(t)
	twoNodes(f)
	f.a.status.Alarms = []*pb.Alarm{{Kind: "disk-low"}}
	f.a.cli(t).OK("fleet", "upgrade", "--version", "0.4.0", "--ignore", "disk-low")
}
