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
		Use: "failover", Short: "Measure how long a publisher is held up when the active node fails",
		Long: `Starts a pair, publishes one message after the other, and does something to the active, again and again: kill (SIGKILL), freeze
(SIGSTOP until the other node serves), cut (neither the other node nor etcd hears of it or is heard by it, until the other node serves; its
clients still reach it) or switchover (planned). A latency is the time from the fault to the next acknowledgement by the
other node; of a switchover, the longest time between two acknowledgements.

Freeze and cut are noticed after failover.timeout.`,
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
				return cli.Usage("--fault %q is none of kill, freeze, cut and switchover", o.Fault)
			case o.Fault == bench.FaultCut && f.Raft:
				return cli.Usage("--fault cut needs --coordinator etcd: the voters of a raft quorum know each other by " +
					"one address each, which cannot be cut for one of them")
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
	cmd.Flags().StringVar(&f.Dir, "dir", "", "directory for the data; default: a temporary one")
	cmd.Flags().IntVar(&o.Times, "kills", 50, "how often")
	cmd.Flags().DurationVar(&o.Settle, "settle", 0,
		"how long the pair serves, in sync, before each fault")
	cmd.Flags().StringVar(&o.Fault, "fault", bench.FaultKill,
		"what is done to the active: kill, freeze, cut or switchover")
	cmd.Flags().StringVar(&o.Coordinator, "coordinator", "etcd",
		"what holds the pair's record: etcd, or raft, with a witness process")
	f.PageSize, f.Memory, f.Sizes, f.Messages, f.Rounds, f.Queues = "2KiB", "128MiB", []string{"512"}, 1, 1, 1
	return cmd
}
