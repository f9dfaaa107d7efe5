// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
	"github.com/lockstep-mq/lockstep/server/config"
)

func maintenanceCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	var o measure.MaintenanceOptions
	var storeSize, resizeTo string
	var publishers []int
	cmd := &cobra.Command{
		Use:   "maintenance",
		Short: "Measure what publishers notice of a resize, a backup, a scan, and a standby that rejoins",
		Long: `Starts a pair, fills it, and publishes at a steady rate. In each round each piece of work is done after a quiet time, with which
the latencies meanwhile are compared:

  nothing  the quiet time once more: how far two of them are apart on this machine
  resize   a rolling resize of both nodes, to --resize-to and back in the next round, with its switchover
  backup   of the standby
  scan     of the standby
  rejoin   the standby is killed and its data removed; from when it is started again, and gets a snapshot of the active, until
           it is in sync

A message that is late because the one before it took long counts from the time at which it was due. The ratio is that of the
p99 meanwhile to the p99 of the quiet time before. The last table has for each piece of work the round with the median
ratio, the spread of the ratios, and the longest latency of any round. MB/s are those of the work: of a resize the
bodies on both nodes in all of its time, of a rejoin the snapshot with its installation. With --output json each round has its slowest
moments, and the step of the plan that they were in.

Both nodes, the coordinator and the publishers share this machine and its disk: on machines of their own, work on the
standby is further away from publishers.`,
		Example: `  lockstep-lab maintenance
  lockstep-lab maintenance --work resize,rejoin --publishers 1 --store 2GiB
  lockstep-lab maintenance --set maintenance.background-share=100 --rounds 3 --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			size, err := config.ParseSize(storeSize)
			if err != nil {
				return cli.Usage("--store: %v", err)
			}
			to, err := cli.ParsePageSize("--resize-to", resizeTo)
			if err != nil {
				return err
			}
			o.StoreBytes, o.PageSizes, o.Rounds = size.Bytes(), [2]int{int(to), int(p.PageSize.Bytes())}, f.Rounds
			if err := checkMaintenance(o, publishers); err != nil {
				return err
			}
			f.Pair = true
			for _, n := range publishers {
				o.Publishers = n
				if err := benchcli.WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
					return maintenanceRounds(env, cmd, t, o)
				}); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&f.Sync, "sync", "always", "sync mode of the nodes: always, interval or off")
	cmd.Flags().StringVar(&f.Dir, "dir", "", "directory for the data; default: a temporary one")
	cmd.Flags().StringVar(&f.Memory, "memory", "512MiB", "memory budget of the nodes")
	cmd.Flags().StringVar(&f.PageSize, "page-size", "2KiB", "page size of the nodes")
	cmd.Flags().StringVar(&resizeTo, "resize-to", "8KiB",
		"page size that the first resize changes to; the next one changes back")
	cmd.Flags().StringToStringVar(&f.Set, "set", nil,
		"settings of the nodes, such as maintenance.background-share=100,maintenance.rewrite-rate=50MiB")
	cmd.Flags().StringVar(&storeSize, "store", "512MiB", "messages that are in the store before")
	cmd.Flags().IntVar(&o.SizeBytes, "message-size", 512, "bytes of a message that is published meanwhile")
	cmd.Flags().IntVar(&o.PerSecond, "per-second", 500, "messages published each second, by all publishers together")
	cmd.Flags().IntSliceVar(&publishers, "publishers", []int{1, 8},
		"numbers of publishers to measure, one after the other; each publisher waits for its acknowledgements")
	cmd.Flags().StringSliceVar(&o.Works, "work", measure.Works(),
		"maintenance: "+strings.Join(measure.Works(), ", "))
	cmd.Flags().IntVar(&f.Rounds, "rounds", 5, "rounds")
	cmd.Flags().DurationVar(&o.Quiet, "quiet", 5*time.Second,
		"for how long publishers are measured before each piece of work")
	cmd.Flags().DurationVar(&o.Settle, "settle", 3*time.Second,
		"how long the machine is left alone after each piece of work")
	f.Sizes, f.Messages, f.Queues = []string{"512"}, 1, 1
	return cmd
}

func checkMaintenance(o measure.MaintenanceOptions, publishers []int) error {
	if o.PerSecond < 1 || o.Quiet <= 0 || o.Settle < 0 || o.StoreBytes < 1 || o.SizeBytes < 0 {
		return cli.Usage("--store, --per-second and --quiet must be above 0, and --message-size and --settle not below")
	}
	if o.PageSizes[0] == 0 {
		return cli.Usage("--resize-to must not be empty")
	}
	for _, n := range publishers {
		if n < 1 || n > o.PerSecond {
			return cli.Usage("--publishers %d is not between 1 and --per-second", n)
		}
	}
	for _, w := range o.Works {
		if !slices.Contains(measure.Works(), w) {
			return cli.Usage("--work %q is none of %s", w, strings.Join(measure.Works(), ", "))
		}
	}
	if len(o.Works) == 0 || len(publishers) == 0 {
		return cli.Usage("--work and --publishers must not be empty")
	}
	if o.PageSizes[0] == o.PageSizes[1] {
		return cli.Usage("--resize-to must not be --page-size")
	}
	return nil
}

// maintenanceRounds measures one number of publishers and prints a table of the medians.
func maintenanceRounds(env *cli.Env, cmd *cobra.Command, t bench.Target, o measure.MaintenanceOptions) error {
	results := make(map[string][]measure.MaintenanceResult)
	err := measure.Maintenance(cmd.Context(), t, o, func(r measure.MaintenanceResult) error {
		results[r.Phase] = append(results[r.Phase], r)
		return env.Print.Object(r)
	})
	if err != nil {
		return err
	}
	ms := func(quiet, while float64) string { return benchcli.Digits(quiet) + " → " + benchcli.Digits(while) }
	rows := make([][]any, 0, len(o.Works))
	for _, work := range o.Works {
		m := measure.MedianWork(results[work])
		if err := env.Print.Object(m); err != nil {
			return err
		}
		rate := ""
		if m.MB > 0 {
			rate = fmt.Sprintf("%.0f", m.Rate)
		}
		rows = append(rows, []any{
			work, m.Publishers, ms(m.Quiet.P50, m.While.P50), ms(m.Quiet.P99, m.While.P99),
			fmt.Sprintf("%.2f", m.P99Ratio), fmt.Sprintf("%.2f–%.2f", m.P99RatioMin, m.P99RatioMax),
			ms(m.Quiet.Max, m.While.Max), benchcli.Digits(m.MaxOfAll), fmt.Sprintf("%.1f", m.Seconds), rate,
		})
	}
	return env.Print.Table([]string{
		"Work", "Publishers", "p50 ms", "p99 ms", "p99 ×", "of rounds", "Max ms", "Of all", "Seconds", "MB/s",
	}, rows)
}
