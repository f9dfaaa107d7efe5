// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
)

func searchCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	cmd := &cobra.Command{
		Use: "search", Short: "Measure searches with a filter",
		Long: `Fill a queue with --messages messages, and search it with a filter that one of 10,000 messages matches: from
the oldest message, and from the newest. The rate is the number of messages evaluated per second. A latency is the
time until the next match is received.`,
		Example: `  lockstep-lab search
  lockstep-lab search --messages 10000000 --standalone --sync off --rounds 5`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			return benchcli.WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
				for _, size := range p.Sizes {
					var results []bench.Result
					o := measure.SearchOptions{Messages: f.Messages, SizeBytes: size, Rounds: f.Rounds}
					err := measure.Search(cmd.Context(), t, o, func(r bench.Result) error {
						results = append(results, r)
						return env.Print.Object(r)
					})
					if err != nil {
						return err
					}
					if err := benchcli.PrintResults(env, results); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	f.Register(cmd)
	benchcli.SetDefaults(cmd, map[string]string{"messages": "1000000"})
	cmd.Flags().Lookup("messages").Usage = "messages in the queue"
	_ = cmd.Flags().MarkHidden("queues")
	return cmd
}
