// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	// consolesEvery is the interval at which the console addresses of other pairs are requested. maxConsoles limits the
	// number of nodes for which they are requested.
	consolesEvery = 30 * time.Second
	maxConsoles   = 32
)

func fleetPage() Page {
	c := &consoles{known: map[string]consoleAddress{}}
	return Page{
		Path: "/fleet", Title: "Fleet", Key: "f", Right: "operate", Template: "fleet", Live: true,
		Offered: func(st *pb.GetStatusResponse) bool { return st.GetFleet() != nil },
		Load:    func(ctx context.Context, v *View) (any, error) { return loadFleet(ctx, v, c) },
		Actions: []Action{
			{Name: "place", Title: "Set placement rule", Right: "operate", Dialog: "place", Do: withFleet(putRule)},
			{Name: "unplace", Title: "Delete placement rule", Right: "operate", Dialog: "unplace", Do: withFleet(deleteRule)},
			{
				Name: "drain", Title: "Drain pair", Right: "operate", Dialog: "drain",
				Do: withFleet(setPairState(pb.PairState_PAIR_STATE_DRAINING)),
			},
			{
				Name: "undrain", Title: "Open pair", Right: "operate", Dialog: "undrain",
				Do: withFleet(setPairState(pb.PairState_PAIR_STATE_OPEN)),
			},
			{
				Name: "move", Title: "Move queues to this pair", Right: "operate", Dialog: "move",
				Load: withFleet(loadOwnPair), Do: withFleet(moveQueues),
			},
			{Name: "cancel", Title: "Cancel move", Right: "operate", Dialog: "cancel", Do: withFleet(cancelMove)},
		},
	}
}

// withFleet is like withActive, but passes a client of FleetService.
func withFleet[T any](
	fn func(context.Context, *View, pb.FleetServiceClient) (T, error),
) func(context.Context, *View) (T, error) {
	return withActive(pb.NewFleetServiceClient, fn)
}

type fleetView struct {
	// Fleet is nil if the pair belongs to no fleet.
	Fleet *pb.GetFleetResponse
	State label
	Error string
	Pairs []*fleetPair
	Rules []placementRule
	Moves []fleetMove
	// MovesCurrent reports whether Moves contains all moves to other pairs. MovesError is the reason why the moves are
	// unknown, or empty.
	MovesCurrent bool
	MovesError   string
	Conditions   []*pb.Condition
}

// fleetPair is a registered pair.
type fleetPair struct {
	*pb.FleetPair

	Own      bool
	State    label
	Live     label
	Labels   string
	Consoles []consoleAddress
}

// UsedPercent returns the used percentage of the filesystem. It returns 0 if it is unknown.
func (p *fleetPair) UsedPercent() int {
	if p.GetLoad() == nil || p.GetCapacityBytes() == 0 {
		return 0
	}
	return percent(p.GetCapacityBytes()-min(p.GetCapacityBytes(), p.GetLoad().GetFreeBytes()), p.GetCapacityBytes())
}

type placementRule struct{ Pattern, Pairs string }

type fleetMove struct {
	*pb.FleetMove

	Phase  label
	Queues string
	Pause  string
	// Cancelable reports whether this pair can cancel the move.
	Cancelable bool
}

// getFleet returns the state of the fleet, as reported by the active or, if no node is active, by this node. It returns
// nil if the pair belongs to no fleet.
func (v *View) getFleet(ctx context.Context) (*pb.GetFleetResponse, error) {
	cc, err := v.Active(ctx)
	if errors.Is(err, errNoActive) {
		cc, err = v.Own(), nil
	}
	if err != nil {
		return nil, err
	}
	resp, err := pb.NewFleetServiceClient(cc).GetFleet(ctx, &pb.GetFleetRequest{})
	if status.Code(err) == codes.FailedPrecondition {
		return nil, nil //nolint:nilnil // no fleet
	}
	return resp, err
}

func loadFleet(ctx context.Context, v *View, c *consoles) (*fleetView, error) {
	resp, err := v.getFleet(ctx)
	if err != nil || resp == nil {
		return &fleetView{}, err
	}
	nodes, err := v.nodes(ctx)
	if err != nil {
		return nil, err
	}
	d := newFleet(resp)
	for _, one := range mergeConditions(nodes) {
		if strings.HasPrefix(one.GetKind(), "fleet-") {
			d.Conditions = append(d.Conditions, one)
		}
	}
	d.loadMoves(ctx, v)
	c.add(ctx, v, d.Pairs)
	return d, nil
}

// newFleet creates the view from the response of a node.
func newFleet(resp *pb.GetFleetResponse) *fleetView {
	dir, own := resp.GetDirectory(), resp.GetMembership()
	d := &fleetView{Fleet: resp, State: label{"available", "good"}}
	d.Error = plain(cmp.Or(dir.GetError(), own.GetError()))
	switch p := dir.GetProblem(); {
	case p != pb.DirectoryProblem_DIRECTORY_PROBLEM_UNSPECIFIED:
		d.State = label{enumWord(p.String(), "DIRECTORY_PROBLEM_"), "bad"}
	case d.Error != "" || len(dir.GetMalformed()) > 0 || own.GetConflictsTotal() > 0:
		d.State = label{"problem", "warn"}
	}
	for _, p := range resp.GetPairs() {
		one := &fleetPair{FleetPair: p, Own: p.GetName() == resp.GetPair(), Labels: labelsText(p.GetLabels())}
		one.State = label{enumWord(p.GetState().String(), "PAIR_STATE_"), "warn"}
		if p.GetState() == pb.PairState_PAIR_STATE_OPEN {
			one.State.Class = "good"
		}
		one.Live = label{"not live", "bad"}
		if p.GetLive() {
			one.Live = label{"live", "good"}
		}
		d.Pairs = append(d.Pairs, one)
	}
	for _, r := range resp.GetRules() {
		to := "pair " + r.GetPair()
		if r.GetPair() == "" {
			to = "pairs with " + labelsText(r.GetLabels())
		}
		d.Rules = append(d.Rules, placementRule{r.GetPattern(), to})
	}
	return d
}

// enumWord returns the name of a value of an enumeration, as the command line prints it.
func enumWord(name, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, prefix)), "_", "-")
}

func labelsText(labels map[string]string) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, name+"="+labels[name])
	}
	return strings.Join(list, ", ")
}

func (d *fleetView) loadMoves(ctx context.Context, v *View) {
	cc, err := v.Active(ctx)
	if err != nil {
		d.MovesError = describe(err).Text
		return
	}
	resp, err := pb.NewFleetServiceClient(cc).ListMoves(ctx, &pb.ListMovesRequest{})
	if err != nil {
		d.MovesError = describe(err).Text
		return
	}
	d.addMoves(resp)
}

// addMoves adds the moves, the last one first.
func (d *fleetView) addMoves(resp *pb.ListMovesResponse) {
	d.MovesCurrent = resp.GetCurrent()
	for _, m := range slices.Backward(resp.GetMoves()) {
		row := fleetMove{FleetMove: m, Queues: strings.Join(m.GetQueues(), ", ")}
		row.Phase = label{enumWord(m.GetPhase().String(), "MOVE_PHASE_"), "info"}
		switch m.GetPhase() {
		case pb.MovePhase_MOVE_PHASE_UNSPECIFIED:
			row.Phase = label{"known to the target", ""}
		case pb.MovePhase_MOVE_PHASE_WAITING, pb.MovePhase_MOVE_PHASE_COPYING, pb.MovePhase_MOVE_PHASE_FENCED:
			row.Cancelable = m.GetTo() == d.Fleet.GetPair()
		case pb.MovePhase_MOVE_PHASE_DONE:
			row.Phase.Class = "good"
		case pb.MovePhase_MOVE_PHASE_CANCELED, pb.MovePhase_MOVE_PHASE_NOT_MOVED:
			row.Phase.Class = "warn"
		case pb.MovePhase_MOVE_PHASE_TAKEN:
		}
		if m.GetPause() != nil {
			row.Pause = durationText(m.GetPause())
		}
		d.Moves = append(d.Moves, row)
	}
}

// consoleAddress is the address of the console of a node. URL is empty if it is unknown, or if the node has no console.
type consoleAddress struct {
	Node, URL string

	at time.Time // of the request
}

// consoles caches the consoles of the nodes of other pairs, by the addresses of the nodes.
type consoles struct {
	mu    sync.Mutex // guards known
	known map[string]consoleAddress
}

// add sets the consoles of the other pairs. It first requests those that are unknown or were requested more than
// consolesEvery ago.
func (c *consoles) add(ctx context.Context, v *View, pairs []*fleetPair) {
	var due []string
	now := v.server.o.Now()
	c.mu.Lock()
	for _, p := range pairs {
		for _, address := range p.GetAddresses() {
			if one, ok := c.known[address]; !p.Own && (!ok || now.Sub(one.at) >= consolesEvery) && len(due) < maxConsoles {
				due = append(due, address)
				c.known[address] = consoleAddress{Node: one.Node, URL: one.URL, at: now}
			}
		}
	}
	c.mu.Unlock()
	var requests sync.WaitGroup
	for _, address := range due {
		requests.Go(func() {
			limited, cancel := context.WithTimeout(ctx, otherTimeout)
			defer cancel()
			st, err := v.server.o.OtherStatus(limited, address)
			if err != nil {
				return // the pair is shown without a link
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.known[address] = consoleAddress{cmp.Or(st.GetNode().GetName(), address), st.GetConsole(), now}
		})
	}
	requests.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range pairs {
		for _, address := range p.GetAddresses() {
			if one := c.known[address]; one.URL != "" {
				p.Consoles = append(p.Consoles, one)
			}
		}
	}
	if len(c.known) > 4*maxConsoles { // addresses of former pairs
		clear(c.known)
	}
}

func putRule(ctx context.Context, v *View, c pb.FleetServiceClient) (Done, error) {
	rule := &pb.PlacementRule{Pattern: v.Get("pattern"), Pair: v.Get("pair")}
	for _, part := range words(v.Get("labels")) {
		name, value, ok := strings.Cut(part, "=")
		if !ok {
			return Done{}, invalid("A label has the form NAME=VALUE.")
		}
		if rule.Labels == nil {
			rule.Labels = map[string]string{}
		}
		rule.Labels[name] = value
	}
	_, err := c.PutPlacementRule(ctx, &pb.PutPlacementRuleRequest{Rule: rule})
	return Done{Message: "Set the placement rule for " + rule.GetPattern() + "."}, err
}

func deleteRule(ctx context.Context, v *View, c pb.FleetServiceClient) (Done, error) {
	pattern := v.Query.Get("pattern")
	_, err := c.DeletePlacementRule(ctx, &pb.DeletePlacementRuleRequest{Pattern: pattern})
	return Done{Message: "Deleted the placement rule for " + pattern + "."}, err
}

func setPairState(state pb.PairState) func(context.Context, *View, pb.FleetServiceClient) (Done, error) {
	return func(ctx context.Context, v *View, c pb.FleetServiceClient) (Done, error) {
		pair := v.Query.Get("pair")
		_, err := c.SetPairState(ctx, &pb.SetPairStateRequest{Pair: pair, State: state})
		return Done{Message: fmt.Sprintf("Pair %s is %s.", pair, enumWord(state.String(), "PAIR_STATE_"))}, err
	}
}

// loadOwnPair returns the name of this pair.
func loadOwnPair(ctx context.Context, _ *View, c pb.FleetServiceClient) (any, error) {
	resp, err := c.GetFleet(ctx, &pb.GetFleetRequest{})
	return resp.GetPair(), err
}

func moveQueues(ctx context.Context, v *View, c pb.FleetServiceClient) (Done, error) {
	var queues []string
	for line := range strings.Lines(v.Get("queues")) {
		if name := strings.TrimRight(line, "\r\n"); name != "" {
			queues = append(queues, name)
		}
	}
	r, err := c.MoveQueues(ctx, &pb.MoveQueuesRequest{Queues: queues, Group: v.Get("group")})
	if err != nil {
		return Done{}, err
	}
	return Done{Message: fmt.Sprintf("Move %d of %s from pair %s has begun.", r.GetEpoch(),
		plural(len(r.GetQueues()), "queue"), r.GetFrom())}, nil
}

func cancelMove(ctx context.Context, v *View, c pb.FleetServiceClient) (Done, error) {
	epoch := v.number("epoch")
	_, err := c.CancelMove(ctx, &pb.CancelMoveRequest{Epoch: epoch})
	return Done{Message: "Canceled move " + strconv.FormatUint(epoch, 10) + "."}, err
}

// placement is the entry of a queue in the directory of a fleet.
type placement struct {
	Pair, Group string
	Epoch       uint64
}

// placement returns the entry of a queue in the directory, or nil if it is unknown or the queue has no entry.
func (v *View) placement(ctx context.Context, may rights, queue string) *placement {
	if !may.May("operate") {
		return nil
	}
	st, err := v.Status(ctx)
	if err != nil || st.GetFleet() == nil {
		return nil
	}
	resp, err := pb.NewFleetServiceClient(v.Own()).ListPlacements(ctx, &pb.ListPlacementsRequest{Queue: queue})
	if err != nil || len(resp.GetPlacements()) == 0 {
		return nil
	}
	p := resp.GetPlacements()[0]
	return &placement{p.GetPair(), p.GetGroup(), p.GetEpoch()}
}
