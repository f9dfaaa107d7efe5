// SPDX-License-Identifier: Apache-2.0

package benchcli

import (
	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

func publishCommand(env *cli.Env) *cobra.Command {
	var f Flags
	var o bench.PublishOptions
	cmd := &cobra.Command{
		Use: "publish", Short: "Measure publish throughput and latency",
		Long: `Measure publishing. The latency is the time from the call to the acknowledgement. After the rounds, the round
with the median rate is printed again. With --addr, the command uses running nodes, ` + deletes,
		Example: `  lockstep bench publish
  lockstep bench publish --tls --window 100
  lockstep bench publish --rate 300 --duration 30s
  lockstep bench publish --dedup-window 10m --window 100
  lockstep bench publish --publishers 64 --producers 5 --queues 5 --sync off
  lockstep bench publish --producers 5 --queues 5 --window 1000 --duration 10s --standalone --size 512,15000 --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			if o.Groups < 0 {
				return errGroups
			}
			if o.Rate < 0 {
				return ErrRate
			}
			if o.Producers < 1 || o.Window < 1 || f.Queues < 1 || o.Publishers < 0 || o.Publishers > 0 &&
				o.Publishers < o.Producers {
				return cli.Usage("--producers, --window and --queues must be at least 1; --publishers must be 0 or at " +
					"least --producers")
			}
			measure := func(t bench.Target, size int) (bench.Result, error) {
				o := o
				o.SizeBytes, o.Messages, o.Queues, o.Duration = size, f.Messages, f.Queues, f.Duration
				return bench.Publish(cmd.Context(), t, o)
			}
			if f.TLS {
				return withPlain(cmd.Context(), env, cmd, f, p, measure)
			}
			return WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
				return Rounds(env, f, p.Sizes, func(size int) (bench.Result, error) { return measure(t, size) })
			})
		},
	}
	f.Register(cmd)
	cmd.Flags().BoolVar(&f.TLS, "tls", false,
		"compare nodes that have TLS and access rules with nodes that have neither")
	cmd.Flags().DurationVar(&f.Duration, "duration", 0, "duration of a round, instead of --messages")
	RateFlag(cmd, &o)
	cmd.Flags().IntVar(&o.Producers, "producers", 1, "number of producers, each with a separate publish stream")
	cmd.Flags().IntVar(&o.Publishers, "publishers", 0,
		"number of goroutines that share the producers, at least --producers; 0: one per producer")
	orderFlags(cmd, &o.Order)
	cmd.Flags().DurationVar(&o.DedupWindow, "dedup-window", 0,
		"dedup window of the queues, with a message ID per message; 0: none")
	cmd.Flags().IntVar(&o.Window, "window", 1,
		"maximum unacknowledged messages of a publisher; 1: wait for each acknowledgement")
	return cmd
}

// ErrRate is returned for a negative --rate.
var ErrRate = cli.Usage("--rate must not be negative")

// RateFlag adds --rate.
func RateFlag(cmd *cobra.Command, o *bench.PublishOptions) {
	cmd.Flags().Float64Var(&o.Rate, "rate", 0, "total messages per second; 0: unlimited")
}

func consumeCommand(env *cli.Env) *cobra.Command {
	var f Flags
	var o bench.ConsumeOptions
	cmd := &cobra.Command{
		Use: "consume", Short: "Measure consume throughput of filled queues",
		Long: `Fill the queues with --messages messages in total, and measure the time until all are received and their
acknowledgements are confirmed. The latency is the time that a consumer waits for its next message. After the rounds,
the round with the median rate is printed again. With --addr, the command uses running nodes, ` + deletes,
		Example: "  lockstep bench consume\n  lockstep bench consume --consumers 5 --queues 5 --size 512,15000\n" +
			"  lockstep bench consume --consumers 20 --groups 100000",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			if o.Groups < 0 {
				return errGroups
			}
			if o.Consumers < f.Queues || o.Prefetch < 1 || f.Queues < 1 {
				return cli.Usage("--queues and --prefetch must be at least 1, and --consumers at least --queues")
			}
			return WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
				return Rounds(env, f, p.Sizes, func(size int) (bench.Result, error) {
					o := o
					o.SizeBytes, o.Messages, o.Queues = size, f.Messages, f.Queues
					return bench.Consume(cmd.Context(), t, o)
				})
			})
		},
	}
	f.Register(cmd)
	cmd.Flags().IntVar(&o.Consumers, "consumers", 1, "number of consumers, at least --queues")
	orderFlags(cmd, &o.Order)
	cmd.Flags().IntVar(&o.Prefetch, "prefetch", 1000, "maximum messages in flight per consumer")
	return cmd
}

var errGroups = cli.Usage("--groups must be at least 0")

// orderFlags adds --groups and --priorities.
func orderFlags(cmd *cobra.Command, o *bench.Order) {
	cmd.Flags().IntVar(&o.Groups, "groups", 0, "number of message groups; 0: messages have no group")
	cmd.Flags().BoolVar(&o.Priorities, "priorities", false,
		"use queues with priorities, and messages of all ten priorities")
}
