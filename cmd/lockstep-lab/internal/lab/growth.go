// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
)

func growthCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	var o measure.GrowthOptions
	var levels string
	var batch int
	cmd := &cobra.Command{
		Use: "growth", Short: "Measure the store with few and many messages",
		Long: `Measure publishing, and acknowledging in random order, in embedded stores that already contain the numbers of
messages in --levels. The stores take turns, in --slices slices of publishing and as many of acknowledging. A slice
publishes --messages, or acknowledges up to --acks, and ends with a checkpoint. Ratios are relative to the first
level.

After each slice of publishing, the oldest --messages messages are acknowledged, which is not measured.`,
		Example: `  lockstep-lab growth
  lockstep-lab growth --levels 100000,1000000,10000000,100000000 --slices 10 --rounds 1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			if batch < 1 || batch > 10_000 || o.Acks < 1 || o.Slices < 1 {
				return cli.Usage("--batch must be 1 to 10000, --acks and --slices at least 1")
			}
			for part := range strings.SplitSeq(levels, ",") {
				n, err := strconv.Atoi(strings.TrimSpace(part))
				if err != nil || n < o.Slices || n > 4_000_000_000 {
					return cli.Usage("--levels: %q must be a number of messages from --slices to 4,000,000,000", part)
				}
				o.Levels = append(o.Levels, n)
			}
			o.Messages = f.Messages
			return embeddedRounds(env, cmd, f, p, batch, len(o.Levels), []string{"publish", "ack random"},
				func(ctx context.Context, e measure.EmbeddedOptions, report func(bench.Result) error) error {
					o := o
					o.EmbeddedOptions = e
					return measure.Growth(ctx, o, report)
				})
		},
	}
	f.RegisterStore(cmd)
	benchcli.SetDefaults(cmd, map[string]string{"sync": "off", "size": "100", "messages": "200000", "rounds": "1"})
	describeStore(cmd, "each store", "messages to publish per slice")
	cmd.Flags().StringVar(&levels, "levels", "100000,1000000,10000000",
		"numbers of stored messages, each in a separate store")
	cmd.Flags().IntVar(&o.Acks, "acks", 20_000,
		"maximum messages to acknowledge per slice")
	cmd.Flags().IntVar(&o.Slices, "slices", 5, "number of slices per store, for each of the two operations")
	cmd.Flags().IntVar(&batch, "batch", 100, "messages or acknowledgements per transaction, 1 to 10000")
	return cmd
}
