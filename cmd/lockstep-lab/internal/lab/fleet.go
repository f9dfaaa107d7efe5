// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
)

func fleetCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	var o measure.FleetOptions
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Derive how the throughput of a fleet scales",
		Long: `In each round, measure one pair outside a fleet, a fleet of one pair, and a fleet of --pairs pairs. Each pair
has one queue, to which --messages are published. The pairs are loaded one after the other, unless --concurrent is
given.

The throughput on separate machines is derived, not measured: it is the sum, over all pairs, of the messages per
second of CPU time of both nodes. The ratio compares it with the pair outside a fleet in the same round; the goal is
2.8 for three pairs. The derivation assumes that CPU time limits each pair, and that clients, network and disks are
not shared.

All pairs share one disk, which can increase their system time. A --dir in memory, such as /dev/shm, avoids this. The
CPU time of the client includes etcd. Rate/s is the rate on this machine.`,
		Example: `  lockstep-lab fleet
  lockstep-lab fleet --sync always --dir /dev/shm --messages 200000
  lockstep-lab fleet --messages 1000000 --size 512,15000 --consumers 1 --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			if o.Pairs < 1 || o.Window < 1 || o.Consumers < 0 {
				return cli.Usage("--pairs and --window must be at least 1, and --consumers must not be negative")
			}
			f.Pair, o.Messages = true, f.Messages
			for _, size := range p.Sizes {
				o.SizeBytes = size
				if err := fleetRounds(env, cmd, f, p, o); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringToStringVar(&f.Set, "set", nil, "settings of the nodes, such as commit-delay=1ms")
	f.RegisterStore(cmd)
	benchcli.SetDefaults(cmd, map[string]string{
		"messages": "500000", "rounds": "5", "memory": "256MiB", "sync": "off",
	})
	cmd.Flags().Lookup("messages").Usage = "messages per pair and round"
	cmd.Flags().IntVar(&o.Pairs, "pairs", 3, "number of pairs of the fleet")
	cmd.Flags().IntVar(&o.Window, "window", 1000,
		"maximum unacknowledged messages of a producer; 1: wait for each acknowledgement")
	cmd.Flags().IntVar(&o.Consumers, "consumers", 0, "consumers of each queue; 0: messages are not consumed")
	cmd.Flags().BoolVar(&o.Concurrent, "concurrent", false, "load all pairs at the same time")
	return cmd
}

// fleetSetups returns the numbers of pairs to measure; 0 is one pair outside a fleet.
func fleetSetups(pairs int) []int {
	if pairs == 1 {
		return []int{0, 1}
	}
	return []int{0, 1, pairs}
}

func fleetRounds(
	env *cli.Env, cmd *cobra.Command, f benchcli.Flags, p benchcli.Params, o measure.FleetOptions,
) error {
	setups := fleetSetups(o.Pairs)
	results := make([][]measure.FleetResult, len(setups))
	var all []measure.FleetResult
	add := func(r measure.FleetResult) error {
		all = append(all, r)
		return env.Print.Object(r)
	}
	for round := range f.Rounds {
		for i, pairs := range setups {
			o.Pairs = pairs
			r, err := fleetSetup(env, cmd, f, p, o)
			if err != nil {
				return err
			}
			r.Round = round + 1
			results[i] = append(results[i], r)
			last := &results[i][round]
			last.CompareFleet(&results[0][round])
			if err := add(*last); err != nil {
				return err
			}
		}
	}
	for _, rounds := range results {
		if err := add(measure.MedianFleet(rounds)); err != nil {
			return err
		}
	}
	return printFleet(env, all)
}

func fleetSetup(
	env *cli.Env, cmd *cobra.Command, f benchcli.Flags, p benchcli.Params, o measure.FleetOptions,
) (r measure.FleetResult, err error) {
	f.Settings = map[string]string{}
	if o.Pairs > 0 {
		f.Settings["fleet.pair"] = measure.FleetPair(0)
	}
	err = benchcli.WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
		r, err = measure.Fleet(cmd.Context(), t, f.AllSettings(p), o)
		return err
	})
	return r, err
}

func printFleet(env *cli.Env, results []measure.FleetResult) error {
	rows := make([][]any, 0, len(results))
	for i := range results {
		r := &results[i]
		round, ratio, goal := fmt.Sprint(r.Round), fmt.Sprintf("%.2f", r.Ratio), ""
		if r.Median {
			round = "median"
			ratio += fmt.Sprintf(" (%.2f–%.2f)", r.RatioMin, r.RatioMax)
		}
		if r.Goal > 0 {
			goal = fmt.Sprintf("≥ %.2f", r.Goal)
		}
		nodes := make([]string, 0, len(r.PairCPU))
		for _, c := range r.PairCPU {
			nodes = append(nodes, fmt.Sprintf("%.1f (%.1f)", c.PerMessage, c.SystemPerMessage))
		}
		rows = append(rows, []any{
			r.Name(), round, r.Sync, r.SizeBytes, r.Messages, fmt.Sprintf("%.0f", r.Rate), strings.Join(nodes, " "),
			fmt.Sprintf("%.1f", r.ClientCPU), fmt.Sprintf("%.0f", r.Derived), ratio, goal,
		})
	}
	return env.Print.Table([]string{
		"Setup", "Round", "Sync", ">Bytes", ">Messages", ">Rate/s", ">Nodes CPU (system) µs/message",
		">Client CPU µs/message", ">Derived/CPU s", ">Derived ×", ">Goal",
	}, rows)
}
