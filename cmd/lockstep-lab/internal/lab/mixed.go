// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
)

func mixedCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	var o measure.MixedOptions
	cmd := &cobra.Command{
		Use: "mixed", Short: "Measure concurrent publishing and consuming",
		Long: `Fill the queues with --backlog messages in total, then publish and consume at the same time for --duration.
The latency of "deliver" is the time that a consumer waits for its next message.`,
		Example: `  lockstep-lab mixed
  lockstep-lab mixed --backlog 2000000 --memory 256MiB --duration 30s
  lockstep-lab mixed --producers 50 --consumers 50 --queues 10 --window 100 --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			if f.Queues < 1 || o.Producers < f.Queues || o.Consumers < f.Queues || o.Window < 1 || o.Prefetch < 1 ||
				o.Backlog < 0 || f.Duration <= 0 {
				return cli.Usage("--producers and --consumers must be at least --queues, --queues, --window and --prefetch " +
					"at least 1, --duration positive, and --backlog not negative")
			}
			return benchcli.WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
				for _, size := range p.Sizes {
					if err := mixedRounds(env, cmd, f, o, size, t); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	f.Register(cmd)
	benchcli.SetDefaults(cmd, map[string]string{"queues": "100", "rounds": "1"})
	_ = cmd.Flags().MarkHidden("messages") // --duration determines the number
	cmd.Flags().IntVar(&o.Producers, "producers", 500, "number of producers, at least --queues")
	cmd.Flags().IntVar(&o.Consumers, "consumers", 560, "number of consumers, at least --queues")
	cmd.Flags().IntVar(&o.Window, "window", 1,
		"maximum unacknowledged messages of a producer; 1: wait for each acknowledgement")
	cmd.Flags().IntVar(&o.Prefetch, "prefetch", 100, "maximum messages in flight per consumer")
	cmd.Flags().IntVar(&o.Backlog, "backlog", 0, "total number of messages in the queues at the start")
	cmd.Flags().DurationVar(&f.Duration, "duration", 10*time.Second, "publishing and consuming time")
	return cmd
}

func mixedRounds(
	env *cli.Env, cmd *cobra.Command, f benchcli.Flags, o measure.MixedOptions, size int, t bench.Target,
) error {
	var published, delivered []bench.Result
	o.SizeBytes, o.Queues, o.Duration = size, f.Queues, f.Duration
	for round := range f.Rounds {
		p, d, err := measure.Mixed(cmd.Context(), t, o)
		if err != nil {
			return err
		}
		p.Round, d.Round = round+1, round+1
		published, delivered = append(published, p), append(delivered, d)
		if err := output.Objects(env.Print, []bench.Result{p, d}); err != nil {
			return err
		}
	}
	medians := []bench.Result{bench.Median(published), bench.Median(delivered)}
	if err := output.Objects(env.Print, medians); err != nil {
		return err
	}
	return benchcli.PrintResults(env, append(append(published, delivered...), medians...))
}
