// SPDX-License-Identifier: Apache-2.0

//go:build unix

package fleets

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// queues are the queues of the workload, except the one that is created and deleted.
func queues() (all []string) {
	for _, name := range []string{"0", "1", "2", "stray", "app-in", "app-one", "app-two", "app-purged"} {
		all = append(all, prefix+name)
	}
	return all
}

// lifeQueue is created and deleted by the workload.
const lifeQueue = prefix + "app-life"

// requestMove requests a move of random queues to a pair, without waiting for the response.
func (x *executor) requestMove(k kind, to *pair, seed uint64) {
	rng := rand.New(rand.NewPCG(x.seed, seed))
	req := &pb.MoveQueuesRequest{Group: group}
	if k == moveQueue {
		all := queues()
		if len(x.owners(x.ctx, lifeQueue)) > 0 {
			all = append(all, lifeQueue)
		}
		req = &pb.MoveQueuesRequest{Queues: all[3:]} // of the transactions
		if rng.IntN(3) > 0 {
			rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			req.Queues = all[:1+rng.IntN(2)]
		}
		if m := to.active(x.ctx); m != nil { // a move to the owner is refused
			own := func(q string) bool { return serves(x.ctx, m, q) }
			if req.Queues = slices.DeleteFunc(req.Queues, own); len(req.Queues) == 0 {
				return
			}
		}
	}
	m := x.anyActive(to)
	x.running.Go(func() {
		ctx, cancel := context.WithTimeout(x.ctx, operatorLimit)
		defer cancel()
		resp, err := x.fleet(m).MoveQueues(ctx, req)
		if err != nil {
			x.note("move of %v to %s refused: %v", req, m.name, err)
			return
		}
		x.note("move %d of %v from %s to %s", resp.GetEpoch(), resp.GetQueues(), resp.GetFrom(), m.name)
		x.counted("moves begun")
	})
}

// requestCancel requests the cancellation of all moves to a pair, without waiting for the response.
func (x *executor) requestCancel(to *pair) {
	m := x.anyActive(to)
	x.running.Go(func() {
		ctx, cancel := context.WithTimeout(x.ctx, operatorLimit)
		defer cancel()
		moves, err := x.fleet(m).ListMoves(ctx, &pb.ListMovesRequest{})
		if err != nil {
			return
		}
		for _, move := range moves.GetMoves() {
			if move.GetTo() != to.name || move.GetPhase() >= pb.MovePhase_MOVE_PHASE_DONE {
				continue
			}
			_, err := x.fleet(m).CancelMove(ctx, &pb.CancelMoveRequest{Epoch: move.GetEpoch()})
			x.note("cancellation of move %d: %v", move.GetEpoch(), err)
			if err == nil {
				x.counted("moves canceled by an operator")
			}
		}
	})
}

// setState sets the state of a pair, without waiting for the response.
func (x *executor) setState(p *pair, state pb.PairState) {
	m := x.anyActive(x.pairs[0])
	x.running.Go(func() {
		ctx, cancel := context.WithTimeout(x.ctx, operatorLimit)
		defer cancel()
		_, err := x.fleet(m).SetPairState(ctx, &pb.SetPairStateRequest{Pair: p.name, State: state})
		x.note("%v of %s: %v", state, p.name, err)
	})
}

// requestSwitchover requests a switchover within a pair, without waiting for the response.
func (x *executor) requestSwitchover(m *member) {
	x.running.Go(func() {
		ctx, cancel := context.WithTimeout(x.ctx, operatorLimit)
		defer cancel()
		_, err := pb.NewAdminServiceClient(x.conns[m.address]).Switchover(ctx, &pb.SwitchoverRequest{})
		x.note("switchover by %s: %v", m.name, err)
	})
}

// rebuild rebuilds the directory from all pairs, until each has contributed.
func (w *world) rebuild(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	var names []string
	for _, p := range w.pairs {
		names = append(names, p.name)
	}
	for _, p := range w.pairs {
		for ; ctx.Err() == nil; sleep(ctx, poll) {
			m := p.active(ctx)
			if m == nil {
				continue
			}
			call, cancel := context.WithTimeout(ctx, operatorLimit)
			resp, err := w.fleet(m).RebuildDirectory(call, &pb.RebuildDirectoryRequest{Pairs: names})
			cancel()
			w.note("rebuild by %s: %v %v", m.name, resp, err)
			if err == nil {
				break
			}
		}
	}
}

// directoryProblem returns the problem of the directory as text, or "" if all nodes have a current copy of a fleet with
// all pairs, which are live.
func (w *world) directoryProblem(ctx context.Context) string {
	for _, m := range w.members() {
		conn := m.local.Load()
		if conn == nil {
			return m.name + " is down"
		}
		call, cancel := context.WithTimeout(ctx, callLimit)
		resp, err := pb.NewFleetServiceClient(*conn).GetFleet(call, &pb.GetFleetRequest{})
		cancel()
		live := 0
		for _, p := range resp.GetPairs() {
			if p.GetLive() {
				live++
			}
		}
		d := resp.GetDirectory()
		if err != nil || !d.GetCurrent() || d.GetProblem() != 0 || live < len(w.pairs) ||
			resp.GetMembership().GetError() != "" || resp.GetMembership().GetConflictsTotal() > 0 {
			return fmt.Sprintf("%s: %v %v", m.name, resp, err)
		}
	}
	return ""
}

// unsettled returns the first reason why the fleet has not recovered, or "".
func (w *world) unsettled(ctx context.Context) string {
	for _, p := range w.pairs {
		active := p.active(ctx)
		if active == nil {
			return "no active of pair " + p.name
		}
		r, s := localStatus(ctx, active).GetRole(), localStatus(ctx, p.other(active)).GetRole()
		if r != pb.Role_ROLE_ACTIVE || s != pb.Role_ROLE_STANDBY {
			return fmt.Sprintf("pair %s: %v, %v", p.name, r, s)
		}
		moves, err := pb.NewFleetServiceClient(*active.local.Load()).ListMoves(ctx, &pb.ListMovesRequest{})
		if err != nil || !moves.GetCurrent() {
			return fmt.Sprintf("moves to pair %s: %v %v", p.name, moves, err)
		}
		for _, m := range moves.GetMoves() {
			if m.GetPhase() < pb.MovePhase_MOVE_PHASE_DONE {
				return fmt.Sprintf("move at %s: %v", active.name, m)
			}
		}
	}
	return w.directoryProblem(ctx)
}

// settled waits until all pairs are in sync, and all moves have ended.
func (w *world) settled(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, recoveryLimit)
	defer cancel()
	reason := ""
	for ctx.Err() == nil {
		if reason = w.unsettled(ctx); reason == "" {
			return nil
		}
		sleep(ctx, poll)
	}
	return fmt.Errorf("not recovered within %v: %s\n%s", recoveryLimit, reason, w.describe())
}

// describe returns the states of all nodes.
func (w *world) describe() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var lines []string
	for _, m := range w.members() {
		st := localStatus(ctx, m)
		lines = append(lines, fmt.Sprintf("%s: %v (%s), term %d, fleet: %v", m.name, st.GetRole(), st.GetReason(),
			st.GetPair().GetTerm(), st.GetFleet()))
		if conn := m.local.Load(); conn != nil {
			moves, err := pb.NewFleetServiceClient(*conn).ListMoves(ctx, &pb.ListMovesRequest{})
			lines = append(lines, fmt.Sprint("  moves: ", moves, " ", err))
		}
	}
	for k, v := range w.etcd.Keys() {
		lines = append(lines, k+" = "+v)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}
