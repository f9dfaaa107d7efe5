// SPDX-License-Identifier: Apache-2.0

package benchcli

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

func failoverCommand(env *cli.Env) *cobra.Command {
	var f Flags
	var o bench.FailoverOptions
	cmd := &cobra.Command{
		Use: "failover", Short: "Measure failover time",
		Long: `Start a pair, publish messages one by one, and repeatedly apply a fault to the active while both nodes are in
sync. The faults are:

  kill        SIGKILL; the node is restarted afterwards
  freeze      SIGSTOP until the other node serves
  cut         network partition from the other node and etcd, but not from
              clients, until the other node serves
  switchover  planned switchover

The result is the time from the fault to the first acknowledgement by the other node; for a switchover, the longest
time between two acknowledgements.`,
		Example: `  lockstep bench failover --kills 50
  lockstep bench failover --kills 50 --coordinator raft
  lockstep bench failover --fault cut --kills 10
  lockstep bench failover --fault switchover --kills 20 --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			if f.Raft, err = cli.WantsRaft(o.Coordinator); err != nil {
				return err
			}
			switch {
			case o.Settle < 0:
				return cli.Usage("--settle must not be negative")
			case o.Times < 1:
				return cli.Usage("--kills must be at least 1")
			case !slices.Contains([]string{bench.FaultKill, bench.FaultFreeze, bench.FaultCut, bench.FaultSwitchover},
				o.Fault):
				return cli.Usage("--fault %q: must be kill, freeze, cut or switchover", o.Fault)
			case o.Fault == bench.FaultCut && f.Raft:
				return cli.Usage("--fault cut requires --coordinator etcd: each raft voter has a single address " +
					"for all others, so its link to one of them cannot be cut")
			}
			f.Links = o.Fault == bench.FaultCut
			f.Pair = true
			return WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
				r, err := bench.Failover(cmd.Context(), t, o)
				if err != nil {
					return err
				}
				if err := env.Print.Object(r); err != nil {
					return err
				}
				return env.Print.Table([]string{"Fault", "Coordinator", "Times", "Median ms", "p99 ms", "Max ms"},
					[][]any{
						{o.Fault, o.Coordinator, r.Messages, Digits(r.P50), Digits(r.P99), Digits(r.Max)},
					})
			})
		},
	}
	cmd.Flags().StringVar(&f.Sync, "sync", "always", "sync mode of the nodes: always, interval or off")
	cmd.Flags().StringVar(&f.Dir, "dir", "", DirUsage)
	cmd.Flags().IntVar(&o.Times, "kills", 50, "number of faults")
	cmd.Flags().DurationVar(&o.Settle, "settle", 0, "time in sync before each fault")
	cmd.Flags().StringVar(&o.Fault, "fault", bench.FaultKill,
		"fault: kill, freeze, cut or switchover; cut requires etcd")
	cmd.Flags().StringVar(&o.Coordinator, "coordinator", "etcd", "coordinator: etcd, or raft with a witness process")
	f.PageSize, f.Memory, f.Sizes, f.Messages, f.Rounds, f.Queues = "2KiB", "128MiB", []string{"512"}, 1, 1, 1
	return cmd
}
