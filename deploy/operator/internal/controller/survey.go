// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/nodes"
	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/fleet/balance"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// otherLimit is the timeout of all requests to another pair in one step.
const otherLimit = 10 * time.Second

// survey is the state of a fleet, from which the drain of a pair is planned.
type survey struct {
	balance.Fleet

	pair string // which is drained
	// groups contains the placement groups of the queues that the directory assigns to pairs, by pair and queue.
	groups map[string]map[string]string
	// remaining is the number of queues of the pair. It includes the queues that the directory assigns to the pair, but
	// that are being created, or were already moved.
	remaining int
	// moving contains the queues in the unfinished moves from and to the pair, and busy the targets of these moves.
	moving, busy map[string]bool
}

// newSurvey returns the state of a fleet according to a node of a pair, with the queues of this pair only.
func newSurvey(
	ctx context.Context, conn *nodes.Conn, node *admin.Node, f *pb.GetFleetResponse, pair string,
) (*survey, error) {
	s := &survey{
		Fleet: balance.Fleet{Pairs: []balance.Pair{{Member: fleet.Member{Name: pair}}}},
		pair:  pair, groups: map[string]map[string]string{}, moving: map[string]bool{},
		busy: map[string]bool{},
	}
	moves, err := node.Moves(ctx) // first: the queues of a move that ends in the meantime count as moving
	if err != nil {
		return nil, err
	}
	s.addMoves(moves.GetMoves())
	for _, r := range f.GetRules() {
		s.Rules = append(s.Rules, fleet.Rule{Pattern: r.GetPattern(), Pair: r.GetPair(), Labels: r.GetLabels()})
	}
	for p, err := range node.Placements(ctx, admin.PlacementOptions{}) {
		if err != nil {
			return nil, err
		}
		if s.groups[p.GetPair()] == nil {
			s.groups[p.GetPair()] = map[string]string{}
		}
		s.groups[p.GetPair()][p.GetQueue()] = p.GetGroup()
	}
	fixed, err := conn.Admin.FixedQueues(ctx)
	if err != nil {
		return nil, err
	}
	queues, err := queuesOf(ctx, conn.Admin, pair)
	if err != nil {
		return nil, err
	}
	s.addOwn(queues, fixed)
	if err := s.addDenied(ctx, conn.Admin, queues); err != nil {
		return nil, err
	}
	return s, nil
}

// addDenied adds the queues of the drained pair that are not listed because the operator has no right on them.
func (s *survey) addDenied(ctx context.Context, c *admin.Client, listed []balance.Queue) error {
	missing := maps.Clone(s.groups[s.pair])
	for _, q := range listed {
		delete(missing, q.Name)
	}
	maps.DeleteFunc(missing, func(name, _ string) bool { return s.moving[name] })
	denied := 0
	for _, name := range slices.Sorted(maps.Keys(missing)) {
		if denied == maxBlocked {
			break
		}
		_, err := c.GetQueue(ctx, name)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !errors.Is(err, client.ErrDenied) {
			continue // the queue is being created, or was deleted or moved
		}
		denied++
		s.Queues = append(s.Queues, balance.Queue{
			Name: name, Pair: s.pair, Group: missing[name], Fixed: balance.AccessDenied,
			Detail: "the operator has no right on " + name,
		})
	}
	return nil
}

func (s *survey) addMoves(moves []*pb.FleetMove) {
	for _, m := range moves {
		if m.GetPhase() == pb.MovePhase_MOVE_PHASE_DONE || m.GetPhase() == pb.MovePhase_MOVE_PHASE_NOT_MOVED {
			continue
		}
		s.Moves = append(s.Moves, fleet.Move{Epoch: m.GetEpoch(), From: m.GetFrom(), To: m.GetTo(), Queues: m.GetQueues()})
		if m.GetFrom() != s.pair && m.GetTo() != s.pair {
			continue
		}
		s.busy[m.GetTo()] = true
		for _, name := range m.GetQueues() {
			s.moving[name] = true
		}
	}
}

// addOwn adds the queues of the drained pair.
func (s *survey) addOwn(queues []balance.Queue, fixed map[string]admin.FixedQueue) {
	assigned := s.groups[s.pair]
	s.remaining = len(assigned)
	for _, q := range queues {
		group, isAssigned := assigned[q.Name]
		if q.Group = group; !isAssigned {
			s.remaining++
		}
		f, isFixed := fixed[q.Name]
		switch {
		case !isAssigned && !s.moving[q.Name]:
			q.Fixed, q.Detail = notAssigned, "the directory does not assign "+q.Name+" to the pair"
		case isFixed && f.Policy != "":
			q.Fixed, q.Detail = balance.PolicyDeadLetter, q.Name+" is the dead-letter queue of policy "+f.Policy
		case isFixed:
			q.Fixed, q.Detail = balance.Prepared, q.Name+" is used by transaction "+f.XID
		}
		s.Queues = append(s.Queues, q)
	}
}

// addPair adds another live pair, with its queues.
func (s *survey) addPair(p *pb.FleetPair, queues []balance.Queue) {
	member := fleet.Member{Name: p.GetName(), Labels: p.GetLabels()}
	if p.GetState() == pb.PairState_PAIR_STATE_OPEN {
		member.State = fleet.StateOpen
	}
	s.Pairs = append(s.Pairs, balance.Pair{
		Member: member, Live: true, StoredBytes: p.GetLoad().GetStoredBytes(), FreeBytes: p.GetLoad().GetFreeBytes(),
	})
	for _, q := range queues {
		group, assigned := s.groups[q.Pair][q.Name]
		if q.Group = group; assigned { // not a queue that is being moved to the pair, or was moved from it
			s.Queues = append(s.Queues, q)
		}
	}
}

// queuesOf returns the queues of a pair, without their groups.
func queuesOf(ctx context.Context, c *admin.Client, pair string) (queues []balance.Queue, _ error) {
	for offset := 0; ; {
		list, err := c.ListQueues(ctx, admin.ListOptions{Offset: uint32(offset)})
		if err != nil {
			return nil, err
		}
		for i := range list.Queues {
			q := &list.Queues[i]
			out := balance.Queue{Name: q.Name, Pair: pair, Bytes: q.Bytes, Links: q.References()}
			if a := q.Activity; a != nil && a.Rates {
				out.Rate = uint64(math.Round(a.Published))
			}
			queues = append(queues, out)
		}
		if offset += len(list.Queues); len(list.Queues) == 0 || offset >= list.Total {
			break
		}
	}
	// Two pages can contain the same queue.
	slices.SortFunc(queues, func(a, b balance.Queue) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(queues, func(a, b balance.Queue) bool { return a.Name == b.Name }), nil
}
