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
		Short: "Measure publish latency during maintenance",
		Long: `Start a pair, fill it, and publish at a steady rate. Each round runs each operation after a quiet
period, and compares the latencies:

  nothing  another quiet period, for the variation on this machine
  resize   a rolling resize of both nodes to --resize-to, or back
  compact  a rolling compact of both nodes
  backup   of the standby
  scan     of the standby
  verify   a deep comparison of both nodes
  rejoin   the standby is killed and its data deleted; measured from its
           restart, with a snapshot from the active, until it is in sync

If a message is delayed by the previous one, its latency includes the delay. The column "p99 ×" is the p99 during the
operation divided by that of the quiet period. For each operation, the table has the round with the median ratio.

On a virtual machine, other virtual machines on the host can take processor time (steal). This increases latencies much
more than maintenance does. --max-steal 1 repeats measurements with a steal of more than 1 %.

Both nodes, the coordinator and the publishers share this machine and its disk.`,
		Example: `  lockstep-lab maintenance
  lockstep-lab maintenance --work resize,rejoin --publishers 1 --store 2GiB
  lockstep-lab maintenance --sync off --max-steal 1
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
	maintenanceFlags(cmd, &f, &o)
	cmd.Flags().StringVar(&resizeTo, "resize-to", "8KiB",
		"page size of the first resize; the next one changes it back")
	cmd.Flags().StringVar(&storeSize, "store", "512MiB", "size of the messages in the store at the start")
	cmd.Flags().IntSliceVar(&publishers, "publishers", []int{1, 8},
		"numbers of publishers, measured in sequence; each waits for its acknowledgements")
	f.Sizes, f.Messages, f.Queues = []string{"512"}, 1, 1
	return cmd
}

func maintenanceFlags(cmd *cobra.Command, f *benchcli.Flags, o *measure.MaintenanceOptions) {
	cmd.Flags().StringVar(&f.Sync, "sync", "always", "sync mode of the nodes: always, interval or off")
	cmd.Flags().StringVar(&f.Dir, "dir", "", benchcli.DirUsage)
	cmd.Flags().StringVar(&f.Memory, "memory", "512MiB", "memory budget of the nodes")
	cmd.Flags().StringVar(&f.PageSize, "page-size", "2KiB", "page size of the nodes")
	cmd.Flags().StringToStringVar(&f.Set, "set", nil,
		"settings of the nodes, such as maintenance.background-share=100,maintenance.rewrite-rate=50MiB")
	cmd.Flags().IntVar(&o.SizeBytes, "message-size", 512, "size of a published message in bytes")
	cmd.Flags().IntVar(&o.PerSecond, "per-second", 500, "total messages published per second")
	cmd.Flags().StringSliceVar(&o.Works, "work", measure.Works(),
		"operations to run: "+strings.Join(measure.Works(), ", "))
	cmd.Flags().IntVar(&f.Rounds, "rounds", 5, "number of rounds")
	cmd.Flags().DurationVar(&o.Quiet, "quiet", 5*time.Second,
		"duration of the quiet period before each operation")
	cmd.Flags().DurationVar(&o.Settle, "settle", 3*time.Second,
		"unmeasured time before each quiet period")
	cmd.Flags().Float64Var(&o.MaxSteal, "max-steal", 0,
		"discard and repeat measurements with a higher steal, in percent of the processor time; 0: discard none")
}

func checkMaintenance(o measure.MaintenanceOptions, publishers []int) error {
	if o.PerSecond < 1 || o.Quiet <= 0 || o.Settle < 0 || o.StoreBytes < 1 || o.SizeBytes < 0 || o.MaxSteal < 0 {
		return cli.Usage("--store, --per-second and --quiet must be positive; --message-size, --settle and --max-steal " +
			"must not be negative")
	}
	if o.PageSizes[0] == 0 {
		return cli.Usage("--resize-to must not be empty")
	}
	for _, n := range publishers {
		if n < 1 || n > o.PerSecond {
			return cli.Usage("--publishers %d must be between 1 and --per-second", n)
		}
	}
	for _, w := range o.Works {
		if !slices.Contains(measure.Works(), w) {
			return cli.Usage("--work %q: must be one of %s", w, strings.Join(measure.Works(), ", "))
		}
	}
	if len(o.Works) == 0 || len(publishers) == 0 {
		return cli.Usage("--work and --publishers must not be empty")
	}
	if o.PageSizes[0] == o.PageSizes[1] {
		return cli.Usage("--resize-to must differ from --page-size")
	}
	return nil
}

func maintenanceRounds(env *cli.Env, cmd *cobra.Command, t bench.Target, o measure.MaintenanceOptions) error {
	results := make(map[string][]measure.MaintenanceResult)
	err := measure.Maintenance(cmd.Context(), t, o, func(r measure.MaintenanceResult) error {
		if !r.Discarded {
			results[r.Phase] = append(results[r.Phase], r)
		}
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
		"Work", "Publishers", "p50 ms", "p99 ms", "p99 ×", "p99 × range", "Max ms", "Max ms, all rounds", "Seconds", "MB/s",
	}, rows)
}
