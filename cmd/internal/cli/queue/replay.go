// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
)

type replayed struct {
	Moved   uint64 `json:"moved"`
	Skipped uint64 `json:"skipped"`
}

func replayCommand(env *cli.Env) *cobra.Command {
	var o admin.ReplayOptions
	cmd := &cobra.Command{
		Use: "replay-dead NAME", Short: "Move dead letters to their original queues",
		Long: `Move the dead letters of a queue, including those in flight, to the end of their original queues. A dead
letter is skipped if its original queue does not exist on the same pair. Messages that are not dead letters are
skipped. With --to, both kinds of messages are moved to this queue, which must be on the same pair. Messages that are
older than the TTL of their new queue are skipped, because they would expire immediately. If the new queue has neither a
subscription nor a retention, the moved messages are lost. If the command fails, run it again to move the remaining
messages, with --limit reduced by the number of moved messages.`,
		Example: `  lockstep queue replay-dead orders.dead
  lockstep queue replay-dead orders.dead --limit 1
  lockstep queue replay-dead orders.dead --filter 'properties.region == "eu"'
  lockstep queue replay-dead orders.dead --from 1000 --to orders.repair`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if _, err := env.WaitActive(ctx, c); err != nil {
					return err
				}
				search := progress.NewSearch(env.Stderr, "replay "+args[0], false)
				o.Progress = search.Set
				r, err := admin.New(c).ReplayDeadLetters(ctx, args[0], o) // many messages may take longer than the timeout
				search.End()
				if err != nil {
					return replayFailed(err, args[0], r.Moved, o.Limit)
				}
				if err := env.Print.Object(replayed(r)); err != nil {
					return err
				}
				if r.Skipped == 0 {
					return env.Print.Sentence("moved %s from %s", output.Plural(r.Moved, "message"), args[0])
				}
				return env.Print.Sentence("moved %s from %s; skipped %s: not a dead letter, no original queue, or "+
					"older than the TTL of the queue",
					output.Plural(r.Moved, "message"), args[0], output.Count(r.Skipped))
			})
		},
	}
	cmd.Flags().StringVarP(&o.Subscription, "subscription", "s", "",
		"source subscription; default: \"default\"")
	cmd.Flags().StringVar(&o.To, "to", "", "destination queue; default: the original queue of each dead letter")
	cmd.Flags().StringVar(&o.Filter, "filter", "", "CEL expression that messages must match; default: all messages")
	cmd.Flags().Uint64Var(&o.From, "from", 0, "first sequence; 0: the oldest")
	cmd.Flags().Uint64VarP(&o.Limit, "limit", "n", 0, "maximum number of messages to move; 0: unlimited")
	return cmd
}

// replayFailed adds to an error the number of messages that were moved before the error. Advice to repeat the command
// considers the limit.
func replayFailed(err error, queue string, moved, limit uint64) error {
	repeat := moved > 0 || errors.Is(err, client.ErrOutcomeUnknown)
	err = partly(err, "moved", moved)
	if limit == 0 || !repeat {
		return err
	}
	return cli.WithHint(err, "`lockstep queue show %s` for the number of remaining messages, then the command again with "+
		"--limit reduced by the number of moved messages", queue)
}
