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
		Use: "growth", Short: "Measure the embedded store when it holds few and many messages",
		Long: `Measure what it costs to publish, and to acknowledge in random order, when the embedded store holds so many messages
already. Each level has a store of its own; all of them are open, and take turns: --slices times each publishes --messages, which take the
place of as many of its oldest ones, and then acknowledges --acks. A slice ends with a checkpoint, which is part of it. In the table the
rate, and the CPU time of a message, are compared with those of the first level.`,
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
					return cli.Usage("--levels: %q is no number of messages from --slices to 4,000,000,000", part)
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
	cmd.Flags().StringVar(&levels, "levels", "100000,1000000,10000000",
		"messages that are stored before the measurement")
	cmd.Flags().IntVar(&o.Acks, "acks", 20_000,
		"messages to acknowledge in a slice, chosen by chance; at most all that there are")
	cmd.Flags().IntVar(&o.Slices, "slices", 5, "slices of each level")
	cmd.Flags().IntVar(&batch, "batch", 100, "messages, or acknowledgements, of one transaction")
	return cmd
}
