// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	"github.com/lockstep-mq/lockstep/fleet"
	"github.com/lockstep-mq/lockstep/fleet/balance"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

var errOutdated = errors.New("the copy of the directory does not receive changes")

// survey returns the state of the fleet: the directory, and the queues of the live pairs with their sizes. failed
// contains the errors of pairs that have not listed their queues; they do not count as live.
func survey(
	ctx context.Context, env *cli.Env, c *client.Client,
) (f *balance.Fleet, failed map[string]error, _ error) {
	limited, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	answers, err := responding(limited, env, c)
	if err != nil {
		return nil, nil, err
	}
	a := answers[0]
	if !a.current() {
		return nil, nil, cli.WithHint(fmt.Errorf("%s: %w", a.address, errOutdated), "`lockstep fleet status` to show the "+
			"state of the directory")
	}
	f, failed = &balance.Fleet{Rules: rulesOf(a.fleet)}, map[string]error{}
	moves, err := a.node.Moves(limited)
	if err != nil {
		return nil, nil, err
	}
	for _, m := range moves.GetMoves() {
		if m.GetPhase() < pb.MovePhase_MOVE_PHASE_DONE {
			f.Moves = append(f.Moves, fleet.Move{Epoch: m.GetEpoch(), From: m.GetFrom(), To: m.GetTo(), Queues: m.GetQueues()})
		}
	}
	groups := map[string]map[string]string{} // by pair and queue
	for p, err := range a.node.Placements(limited, admin.PlacementOptions{}) {
		if err != nil {
			return nil, nil, err
		}
		if groups[p.GetPair()] == nil {
			groups[p.GetPair()] = map[string]string{}
		}
		groups[p.GetPair()][p.GetQueue()] = p.GetGroup()
	}
	for _, p := range a.fleet.GetPairs() {
		if p.GetLive() { // the directory may not contain the active node yet
			st := pairstatus.QueryPair(limited, c, p.GetAddresses(), min(env.Timeout, findTimeout))
			p.Addresses = st.Addresses()
		}
	}
	if ratesNeeded(a.fleet) {
		startRates(ctx, env, a.fleet)
		if err := cli.WaitRates(ctx); err != nil {
			return nil, nil, err
		}
	}
	for _, p := range a.fleet.GetPairs() {
		known := pairOf(p)
		queues, err := queuesOf(ctx, env, p, unmoved(groups[p.GetName()], f.Moves))
		if known.Live && err != nil {
			failed[p.GetName()], known.Live = err, false
		}
		for _, q := range queues {
			group, owned := groups[q.Pair][q.Name]
			if q.Group = group; owned { // not a queue that is being moved to the pair, or was moved from it
				f.Queues = append(f.Queues, q)
			}
		}
		f.Pairs = append(f.Pairs, known)
	}
	return f, failed, nil
}

func rulesOf(f *pb.GetFleetResponse) (rules []fleet.Rule) {
	for _, r := range f.GetRules() {
		rules = append(rules, fleet.Rule{Pattern: r.GetPattern(), Pair: r.GetPair(), Labels: r.GetLabels()})
	}
	return rules
}

func pairOf(p *pb.FleetPair) balance.Pair {
	return balance.Pair{
		Member: fleet.Member{
			Name: p.GetName(), State: fleet.State(enumText(p.GetState(), "PAIR_STATE_")), Labels: p.GetLabels(),
		},
		Live: p.GetLive(), StoredBytes: p.GetLoad().GetStoredBytes(), FreeBytes: p.GetLoad().GetFreeBytes(),
	}
}

// ratesNeeded reports whether the publish rate of the fleet is at least balance.MinRate. Lower rates are ignored.
func ratesNeeded(f *pb.GetFleetResponse) bool {
	total := 0.0
	for _, p := range f.GetPairs() {
		total += p.GetLoad().GetPublishRate()
	}
	return total >= balance.MinRate
}

// startRates starts the measurement of the rates of queues on all pairs.
func startRates(ctx context.Context, env *cli.Env, f *pb.GetFleetResponse) {
	for _, p := range f.GetPairs() {
		if !p.GetLive() {
			continue
		}
		_ = onPair(ctx, env, p.GetAddresses(), func(ctx context.Context, c *admin.Client) error { // repeated later
			_, err := c.ListQueues(ctx, admin.ListOptions{Limit: 1})
			return err
		})
	}
}

// onPair calls fn with a client of the pair at the addresses.
func onPair(
	ctx context.Context, env *cli.Env, addresses []string, fn func(context.Context, *admin.Client) error,
) error {
	connection, err := env.Connection()
	if err != nil {
		return err
	}
	connection.Addresses = strings.Join(addresses, ",")
	return env.With(ctx, connection, func(ctx context.Context, c *client.Client) error {
		ctx, cancel := context.WithTimeout(ctx, env.Timeout)
		defer cancel()
		return fn(ctx, admin.New(c))
	})
}

// unmoved returns the queues that are not part of a move. groups contains the groups of queues by name.
func unmoved(groups map[string]string, moves []fleet.Move) map[string]bool {
	names := make(map[string]bool, len(groups))
	for name := range groups {
		names[name] = true
	}
	for _, m := range moves {
		for _, name := range m.Queues {
			delete(names, name)
		}
	}
	return names
}

// queuesOf returns the queues of a pair, without their groups. placed contains the queues that the directory assigns to
// the pair: those on which the caller has no right, which the pair does not list, are returned as fixed queues.
func queuesOf(
	ctx context.Context, env *cli.Env, p *pb.FleetPair, placed map[string]bool,
) (queues []balance.Queue, _ error) {
	if !p.GetLive() {
		return nil, nil
	}
	err := onPair(ctx, env, p.GetAddresses(), func(ctx context.Context, c *admin.Client) (err error) {
		if queues, err = listed(ctx, c, p.GetName()); err != nil {
			return err
		}
		for _, q := range queues {
			delete(placed, q.Name)
		}
		denied, err := deniedOf(ctx, c, slices.Sorted(maps.Keys(placed)))
		for _, name := range denied {
			queues = append(queues, balance.Queue{Name: name, Pair: p.GetName(), Fixed: balance.AccessDenied})
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the queues of pair %s: %w", p.GetName(), err)
	}
	// Two pages can contain the same queue.
	slices.SortFunc(queues, func(a, b balance.Queue) int { return strings.Compare(a.Name, b.Name) })
	return slices.CompactFunc(queues, func(a, b balance.Queue) bool { return a.Name == b.Name }), nil
}

// listed returns the queues of a pair on which the caller has a right.
func listed(ctx context.Context, c *admin.Client, pair string) (queues []balance.Queue, _ error) {
	fixed, err := c.FixedQueues(ctx)
	if err != nil {
		return nil, err
	}
	for offset := 0; ; {
		list, err := c.ListQueues(ctx, admin.ListOptions{Offset: uint32(offset)})
		if err != nil {
			return nil, err
		}
		for i := range list.Queues {
			q := queueOf(&list.Queues[i], pair)
			if f, found := fixed[q.Name]; found && f.Policy != "" {
				q.Fixed, q.Detail = balance.PolicyDeadLetter, "policy "+f.Policy
			} else if found {
				q.Fixed, q.Detail = balance.Prepared, "transaction "+f.XID
			}
			queues = append(queues, q)
		}
		if offset += len(list.Queues); len(list.Queues) == 0 || offset >= list.Total {
			return queues, nil
		}
	}
}

// deniedOf returns the given queues without those before the first one on which the caller has no right. The others
// were deleted or moved after the directory was read.
func deniedOf(ctx context.Context, c *admin.Client, queues []string) ([]string, error) {
	for i, name := range queues {
		if _, err := c.GetQueue(ctx, name); pairstatus.Refuses(err) {
			return queues[i:], nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return nil, nil
}

func queueOf(q *admin.Queue, pair string) balance.Queue {
	out := balance.Queue{Name: q.Name, Pair: pair, Bytes: q.Bytes, Links: q.References()}
	if a := q.Activity; a != nil && a.Rates {
		out.Rate = uint64(math.Round(a.Published))
	}
	return out
}

// firstFailure returns the error of one of the pairs, the first by name.
func firstFailure(failed map[string]error) (err error) {
	first := ""
	for name, e := range failed {
		if first == "" || cmp.Less(name, first) {
			first, err = name, e
		}
	}
	return err
}
