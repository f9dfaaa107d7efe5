// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// replayed is the result of replay-dead, for programs.
type replayed struct {
	Moved   uint64 `json:"moved"`
	Skipped uint64 `json:"skipped"`
}

func replayCommand(env *cli.Env) *cobra.Command {
	var o client.ReplayOptions
	cmd := &cobra.Command{
		Use: "replay-dead NAME", Short: "Move dead letters back to the queues that they come from",
		Long: `Move the dead letters of a queue back to the queues that they come from, or to another one, as new messages
at the end. They are moved some at a time, and those of a queue that is gone stay. With --to, messages that are no dead
letters are moved, too. When it is interrupted or fails, what was moved stays moved, and another run moves what is left.`,
		Example: `  lockstep queue replay-dead orders.dead
  lockstep queue replay-dead orders.dead --limit 1
  lockstep queue replay-dead orders.dead --filter 'properties.region == "eu"'
  lockstep queue replay-dead orders.dead --from 1000 --to orders.repair`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				wait, cancel := context.WithTimeout(ctx, env.Timeout)
				_, err := c.WaitActive(wait)
				cancel()
				if err != nil {
					return err
				}
				r, err := c.ReplayDeadLetters(ctx, args[0], o) // many messages may take longer than the timeout
				if err != nil {
					return err
				}
				if err := env.Print.Object(replayed(r)); err != nil {
					return err
				}
				if r.Skipped == 0 {
					return env.Print.Sentence("moved %s of %s", output.Plural(r.Moved, "message"), args[0])
				}
				return env.Print.Sentence("moved %s of %s; %s left where they are: no dead letters, or their queue is gone",
					output.Plural(r.Moved, "message"), args[0], output.Count(r.Skipped))
			})
		},
	}
	cmd.Flags().StringVarP(&o.Subscription, "subscription", "s", "",
		"subscription of the queue that they are taken from; default: \"default\"")
	cmd.Flags().StringVar(&o.To, "to", "", "queue to move them to; default: each to the one that it comes from")
	cmd.Flags().StringVar(&o.Filter, "filter", "", "only messages that match this expression in CEL; default: all")
	cmd.Flags().Uint64Var(&o.From, "from", 0, "first sequence; 0: the oldest")
	cmd.Flags().Uint64VarP(&o.Limit, "limit", "n", 0, "move at most this many; 0: all")
	return cmd
}
