// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// partitionState is a partition of a queue.
type partitionState struct {
	Name string `json:"name"`
	// Pair is the pair of a fleet; empty without a fleet, or without the right to read the directory.
	Pair     string `json:"pair,omitempty"`
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
	Backlog  uint64 `json:"backlog"` // of all subscriptions
	InFlight uint64 `json:"in_flight"`
	// ActiveConsumers are the addresses of the active consumers of an exclusive queue, by subscription.
	ActiveConsumers map[string]string `json:"active_consumers,omitempty"`
}

func partitionStates(q admin.Queue, pairs map[string]string) []partitionState {
	states := make([]partitionState, len(q.Partitions))
	for i, p := range q.Partitions {
		state := partitionState{Name: p.Name, Pair: pairs[p.Name], Messages: p.Messages, Bytes: p.Bytes}
		for _, s := range p.Subscriptions {
			state.Backlog += s.Backlog
			state.InFlight += s.InFlight
			if s.Active != nil {
				if state.ActiveConsumers == nil {
					state.ActiveConsumers = map[string]string{}
				}
				state.ActiveConsumers[s.Name] = s.Active.Address
			}
		}
		states[i] = state
	}
	return states
}

// partitionPairs returns the pairs of the partitions of a queue, by the names of the partitions. It returns nil without
// a fleet, or without the right to read the directory.
func partitionPairs(ctx context.Context, c *client.Client, q admin.Queue) map[string]string {
	if len(q.Partitions) == 0 {
		return nil
	}
	active, err := c.WaitActive(ctx)
	if err != nil {
		return nil
	}
	node, err := admin.New(c).Node(active.Address)
	if err != nil {
		return nil
	}
	pairs := map[string]string{}
	for p, err := range node.Placements(ctx, admin.PlacementOptions{Pattern: q.Name + "#*"}) {
		if err != nil {
			return nil
		}
		pairs[p.GetQueue()] = p.GetPair()
	}
	return pairs
}

func printPartitions(env *cli.Env, states []partitionState) error {
	head := []string{"Partition", ">Messages", "Size", ">Backlog", ">In flight"}
	inFleet, exclusive := false, false
	for _, p := range states {
		inFleet, exclusive = inFleet || p.Pair != "", exclusive || p.ActiveConsumers != nil
	}
	rows := make([][]any, len(states))
	for i, p := range states {
		rows[i] = []any{
			p.Name, output.Count(p.Messages), output.Bytes(p.Bytes), output.Count(p.Backlog), output.Count(p.InFlight),
		}
		if inFleet {
			rows[i] = append(rows[i], p.Pair)
		}
		if exclusive {
			rows[i] = append(rows[i], strings.Join(slices.Compact(slices.Sorted(maps.Values(p.ActiveConsumers))), ", "))
		}
	}
	if inFleet {
		head = append(head, "Pair")
	}
	if exclusive {
		head = append(head, "Active consumer")
	}
	return env.Print.Table(head, rows)
}

// withPartitioned replaces the partitions in a list by the partitioned queues, with the sums of their partitions at all
// pairs. The list must be sorted by name.
func withPartitioned(ctx context.Context, env *cli.Env, list []found) ([]found, error) {
	isPartition := func(q found) bool { return strings.Contains(q.Name, "#") }
	if !slices.ContainsFunc(list, isPartition) {
		return list, nil
	}
	var out []found
	err := env.WithTimeout(ctx, func(ctx context.Context, c *client.Client) error {
		last := ""
		for _, q := range list {
			name, _, _ := strings.Cut(q.Name, "#")
			switch {
			case !isPartition(q):
				out = append(out, q)
			case name != last:
				last = name
				whole, err := admin.New(c).GetQueue(ctx, name)
				if err != nil {
					return err
				}
				pair := q.pair
				if pair != "" {
					pair = severalPairs
				}
				out = append(out, found{whole, pair})
			}
		}
		return nil
	})
	return out, err
}
