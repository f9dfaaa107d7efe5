// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
)

func expireCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	var o measure.ExpireOptions
	cmd := &cobra.Command{
		Use: "expire", Short: "Measure publish latency during mass expiry",
		Long: `Fill a queue with --messages messages, and publish to another queue at a steady rate. Compare the latencies
of these publishes while all messages of the first queue expire with those before and after, and with those while the
nodes repeatedly write checkpoints. If a message is delayed by the previous one, its latency includes the delay.

With --by message-id, only the message IDs expire. With --addr, only the active node writes checkpoints.`,
		Example: `  lockstep-lab expire
  lockstep-lab expire --by queue --standalone
  lockstep-lab expire --messages 200000 --per-second 500 --rounds 1 --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			switch {
			case len(p.Sizes) != 1:
				return cli.Usage("--size must be one size")
			case o.PerSecond < 1 || o.Publishers < 1 || o.Phase <= 0 || o.Fill <= 0 || o.ExpiringBytes < 0:
				return cli.Usage("--per-second, --publishers, --phase and --fill must be positive, and --expiring-size must " +
					"not be negative")
			case o.By != measure.ExpireByMessage && o.By != measure.ExpireByQueue && o.By != measure.ExpireByMessageID:
				return cli.Usage("--by %q: must be message, queue or message-id", o.By)
			}
			o.Messages, o.SizeBytes = f.Messages, p.Sizes[0]
			return benchcli.WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
				for round := range f.Rounds {
					r, err := measure.Expire(cmd.Context(), t, o)
					if err != nil {
						return err
					}
					r.Round = round + 1
					if err := printExpire(env, &r); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	f.Register(cmd)
	benchcli.SetDefaults(cmd, map[string]string{"messages": "1000000", "rounds": "1"})
	cmd.Flags().Lookup("messages").Usage = "messages that expire per round"
	cmd.Flags().Lookup("size").Usage = "size of a message published at the steady rate, in bytes"
	_ = cmd.Flags().MarkHidden("queues")
	cmd.Flags().IntVar(&o.ExpiringBytes, "expiring-size", 100, "size of an expiring message, in bytes")
	cmd.Flags().StringVar(&o.By, "by", measure.ExpireByMessage,
		"source of the expiry: message (expiry time), queue (TTL), or message-id (dedup window of the queue)")
	cmd.Flags().DurationVar(&o.Fill, "fill", time.Minute,
		"time limit for publishing the expiring messages; not with --by queue")
	cmd.Flags().IntVar(&o.PerSecond, "per-second", 1000, "total messages published per second")
	cmd.Flags().IntVar(&o.Publishers, "publishers", 16, "number of publishers; each waits for its acknowledgements")
	cmd.Flags().DurationVar(&o.Phase, "phase", 10*time.Second,
		"measuring time before the expiry, after it, and with checkpoints")
	return cmd
}

func printExpire(env *cli.Env, r *measure.ExpireResult) error {
	if err := env.Print.Object(*r); err != nil {
		return err
	}
	row := func(name string, p *measure.ExpirePhase) []any {
		return []any{
			name, p.Messages, fmt.Sprintf("%.1f", p.Seconds), benchcli.Digits(p.P50), benchcli.Digits(p.P99),
			benchcli.Digits(p.P999), benchcli.Digits(p.Max),
			p.Written, fmt.Sprintf("%.1f", p.CPU),
		}
	}
	err := env.Print.Table([]string{
		"Phase", "Messages", "Seconds", "p50 ms", "p99 ms", "p99.9 ms", "Max ms", "Checkpoints", "CPU s",
	}, [][]any{
		row("alone, before", &r.Before), row("checkpoints", &r.Checkpoints), row("expiring", &r.Expiring),
		row("alone, after", &r.After),
	})
	if err != nil {
		return err
	}
	return env.Print.Sentence("%d messages expired by %s, %.0f a second: p50 × %.2f, p99 × %.2f; with checkpoints alone "+
		"p99 × %.2f", r.Messages, r.By, r.ExpiredRate, r.P50Ratio, r.P99Ratio, r.CheckpointP99Ratio)
}
