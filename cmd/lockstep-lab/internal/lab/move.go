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

func moveCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	var o measure.MoveOptions
	cmd := &cobra.Command{
		Use:   "move",
		Short: "Measure moves of a queue between two pairs",
		Long: `Start a fleet of two pairs, fill a queue, and publish to it at a steady rate. Each round moves the queue to
the other pair, after a quiet period.

The pause is the longest time from the call of a publish to its acknowledgement, from the fence on. The fenced time is
the time from the fence to the takeover by the target. MB/s is the size of the copied messages divided by the time
until the fence. "p99 ms" and "p99 ×" compare the p99 of the publishers in the quiet period and until the fence.

In the last line of the table, pause, fenced time, MB/s and "p99 ×" are medians; the other columns are of the round
with the median pause. All nodes, the coordinator and the publishers share this machine and its disk.`,
		Example: `  lockstep-lab move
  lockstep-lab move --messages 1000000 --size 100,1024 --rounds 10
  lockstep-lab move --messages 100000 --size 16384 --rate 1000 --publishers 8 --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			if o.PerSecond < 1 || o.Publishers < 1 || o.Publishers > o.PerSecond || o.Quiet <= 0 || o.PublishBytes < 0 {
				return cli.Usage("--rate and --quiet must be positive, --publishers between 1 and --rate, and " +
					"--publish-size not negative")
			}
			f.Pair = true
			f.Settings = map[string]string{"fleet.pair": measure.MovePairs()[0]}
			o.Messages, o.Rounds = f.Messages, f.Rounds
			for _, size := range p.Sizes {
				o.SizeBytes = size
				if err := benchcli.WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
					return moveRounds(env, cmd, t, f.AllSettings(p), o)
				}); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringToStringVar(&f.Set, "set", nil, "settings of the nodes, such as commit-delay=1ms")
	f.RegisterStore(cmd)
	benchcli.SetDefaults(cmd, map[string]string{
		"messages": "1000000", "size": "1024", "rounds": "5", "memory": "256MiB",
	})
	cmd.Flags().Lookup("messages").Usage = "messages in the queue before the first move"
	cmd.Flags().Lookup("size").Usage = "size of the messages in the queue before the first move, in bytes; several " +
		"sizes are measured in sequence"
	cmd.Flags().IntVar(&o.PerSecond, "rate", 500, "total messages published per second during the measurement")
	cmd.Flags().IntVar(&o.Publishers, "publishers", 1,
		"number of publishers; each waits for its acknowledgements")
	cmd.Flags().IntVar(&o.PublishBytes, "publish-size", 512, "size of a message of the publishers, in bytes")
	cmd.Flags().DurationVar(&o.DedupWindow, "dedup-window", 0,
		"dedup window of the queue, with a message ID per message that fills it; 0: none")
	cmd.Flags().DurationVar(&o.Quiet, "quiet", 3*time.Second, "duration of the quiet period before each move")
	return cmd
}

func moveRounds(
	env *cli.Env, cmd *cobra.Command, t bench.Target, settings map[string]string, o measure.MoveOptions,
) error {
	var all []measure.MoveResult
	err := measure.Move(cmd.Context(), t, settings, o, func(r measure.MoveResult) error {
		all = append(all, r)
		return env.Print.Object(r)
	})
	if err != nil {
		return err
	}
	rows := make([][]any, 0, len(all)+1)
	row := func(name string, r *measure.MoveResult, pause, fenced string, rate, ratio float64) {
		rows = append(rows, []any{
			name, r.SizeBytes, r.Messages, pause, fenced, fmt.Sprintf("%.0f", r.MB), fmt.Sprintf("%.0f", rate), r.Passes,
			benchcli.Digits(r.Quiet.P99) + " → " + benchcli.Digits(r.Copy.P99), fmt.Sprintf("%.2f", ratio),
		})
	}
	for i := range all {
		r := &all[i]
		row(fmt.Sprint(r.Round), r, benchcli.Digits(r.Pause), benchcli.Digits(r.Fenced), r.Rate, r.P99Ratio)
	}
	m := measure.MedianMove(all)
	if err := env.Print.Object(m); err != nil {
		return err
	}
	most := func(median, longest float64) string {
		return benchcli.Digits(median) + " (max " + benchcli.Digits(longest) + ")"
	}
	row("median", &m, most(m.Pause, m.PauseMax), most(m.FencedMedian, m.FencedMax), m.RateMedian, m.RatioMedian)
	return env.Print.Table([]string{
		"Round", ">Bytes", ">Messages", ">Pause ms", ">Fenced ms", ">MB", ">MB/s", ">Passes", ">p99 ms", ">p99 ×",
	}, rows)
}
