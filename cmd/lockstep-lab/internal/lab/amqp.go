// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
	"github.com/lockstep-mq/lockstep/test/harness"
)

func amqpCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	var o measure.AMQPOptions
	cmd := &cobra.Command{
		Use: "amqp", Short: "Compare AMQP 1.0 with gRPC",
		Long: `Start a pair, and load it alternately with go-amqp and with the Go client. In each round, each of them
publishes for --duration, and then consumes its messages until all acknowledgements are stored. Each publisher waits
for its acknowledgements. With --output json, the median of go-amqp includes its ratio to the Go client.`,
		Example: `  lockstep-lab amqp
  lockstep-lab amqp --size 512,15000 --rounds 5
  lockstep-lab amqp --publishers 1 --producers 1 --queues 1 --sync off --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			if f.Queues < 1 || o.Producers < f.Queues || o.Consumers < f.Queues || o.Publishers < o.Producers ||
				o.Prefetch < 1 || f.Duration <= 0 {
				return cli.Usage("--queues and --prefetch must be at least 1, --producers and --consumers at least --queues, " +
					"--publishers at least --producers, and --duration positive")
			}
			f.Pair, f.NodeSettings, o.Addresses = true, make(map[string]map[string]string), make(map[string]string)
			for _, node := range []string{"a", "b"} {
				port, err := harness.ReservePort()
				if err != nil {
					return err
				}
				o.Addresses[node] = port.Address()
				f.NodeSettings[node] = map[string]string{"amqp.listen": port.Address()}
			}
			o.Queues, o.Rounds, o.Duration = f.Queues, f.Rounds, f.Duration
			return benchcli.WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
				var all []bench.Result
				for _, size := range p.Sizes {
					o.SizeBytes = size
					err := measure.AMQP(cmd.Context(), t, o, func(r bench.Result) error {
						all = append(all, r)
						return env.Print.Object(r)
					})
					if err != nil {
						return err
					}
				}
				return benchcli.PrintResults(env, all)
			})
		},
	}
	f.RegisterStore(cmd)
	_ = cmd.Flags().MarkHidden("messages") // --duration determines the number
	cmd.Flags().StringToStringVar(&f.Set, "set", nil, "settings of the nodes, such as commit-delay=1ms")
	cmd.Flags().IntVar(&f.Queues, "queues", 5, "number of queues")
	cmd.Flags().IntVar(&o.Producers, "producers", 5, "number of producers; with go-amqp, each has a separate connection")
	cmd.Flags().IntVar(&o.Publishers, "publishers", 64, "number of goroutines that share the producers")
	cmd.Flags().IntVar(&o.Consumers, "consumers", 5, "number of consumers; with go-amqp, each has a separate connection")
	cmd.Flags().IntVar(&o.Prefetch, "prefetch", 1000, "maximum messages in flight per consumer")
	cmd.Flags().DurationVar(&f.Duration, "duration", 5*time.Second, "publishing time per round and client")
	return cmd
}
