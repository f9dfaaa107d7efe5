// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

type forwardState struct {
	To     string `json:"to"`
	Move   bool   `json:"move,omitempty"`
	Filter string `json:"filter,omitempty"`
}

func forwardStates(q admin.Queue) []forwardState {
	var list []forwardState
	for _, f := range q.Forwards {
		list = append(list, forwardState(f))
	}
	return list
}

func describeForward(f admin.Forward) string {
	label, how := "all messages", "are copied"
	if f.Filter != "" {
		label = "messages that match " + f.Filter
	}
	if f.Move {
		how = "are moved"
	}
	return fmt.Sprintf("%s %s to %s", label, how, f.To)
}

func forwardCommand(env *cli.Env) *cobra.Command {
	var f admin.Forward
	var remove string
	cmd := &cobra.Command{
		Use: "forward NAME", Short: "Forward messages to another queue",
		Long: `Forward messages to another queue of the same pair when they are published to a queue: all messages, or
those that match --filter. Messages that are already stored, and messages that are moved to the queue, such as dead
letters, are not forwarded. An existing rule for the same destination is replaced. A queue has up to 16 rules, and a
destination queue cannot have rules itself.

With --move, matching messages are stored in the destination only. A destination with neither a subscription nor a
retention stores nothing.

A publish fails if the destination rejects its messages, for example because the destination is full, or because
publishing to it is paused.

Do not run two of these commands concurrently for the same queue: one of the changes can be lost.`,
		Example: `  lockstep queue forward orders --to audit
  lockstep queue forward orders --to orders.eu --filter 'properties.region == "eu"' --move
  lockstep queue forward orders --remove audit`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if remove != "" && (f.Move || f.Filter != "") {
				return cli.Usage("--remove deletes the rule for a queue; --filter and --move require --to")
			}
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				q, err := admin.New(c).GetQueue(ctx, args[0])
				if err != nil {
					return err
				}
				rules, err := changeForwards(q, f, remove)
				if err != nil {
					return err
				}
				if q, err = admin.New(c).SetForwards(ctx, args[0], rules); err != nil {
					return err
				}
				return showQueue(env, q)
			})
		},
	}
	cmd.Flags().StringVar(&f.To, "to", "", "destination queue")
	cmd.Flags().StringVar(&f.Filter, "filter", "", "CEL expression that messages must match; default: all messages")
	cmd.Flags().BoolVar(&f.Move, "move", false, "do not store forwarded messages in the queue itself")
	cmd.Flags().StringVar(&remove, "remove", "", "delete the rule for this destination")
	cmd.MarkFlagsOneRequired("to", "remove")
	cmd.MarkFlagsMutuallyExclusive("to", "remove")
	return cmd
}

func changeForwards(q admin.Queue, f admin.Forward, remove string) ([]admin.Forward, error) {
	rules := slices.Clone(q.Forwards)
	at := slices.IndexFunc(rules, func(r admin.Forward) bool { return r.To == f.To || remove != "" && r.To == remove })
	switch {
	case remove != "" && at < 0:
		return nil, cli.WithHint(fmt.Errorf("queue %s has no forward to %s", q.Name, remove),
			"`lockstep queue show %s` to list its forwards", q.Name)
	case remove != "":
		return slices.Delete(rules, at, at+1), nil
	case at >= 0:
		rules[at] = f
		return rules, nil
	}
	return append(rules, f), nil
}
