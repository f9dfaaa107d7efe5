// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

type movedMessages struct {
	Moved   uint64 `json:"moved"`
	Skipped uint64 `json:"skipped"`
}

func moveCommand(env *cli.Env) *cobra.Command {
	var o admin.MoveOptions
	var sequences []string
	cmd := &cobra.Command{
		Use: "move NAME", Short: "Move messages by sequence to another queue",
		Long: `Move messages of a queue to another queue in one transaction. They become new messages at its end.
Messages that no longer exist are skipped. Without --to, dead letters are moved to their original queues. Messages
in flight are moved as well. The command can be repeated after an error without moving a message twice. To list
sequences, use lockstep browse.`,
		Example: `  lockstep queue move orders --to orders.repair --sequence 17
  lockstep queue move orders --to orders.repair --sequence 17,20-25 --sequence 31
  lockstep queue move prices --subscription audit --to audit.later --sequence 3
  lockstep queue move orders.dead --sequence 4`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			chosen, _, err := parseSequences(sequences)
			if err != nil {
				return err
			}
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				r, err := admin.New(c).MoveMessages(ctx, args[0], chosen, o)
				if err != nil {
					return err
				}
				if err := env.Print.Object(movedMessages(r)); err != nil {
					return err
				}
				text := fmt.Sprintf("moved %s from %s", output.Plural(r.Moved, "message"), args[0])
				if r.Skipped > 0 {
					text += fmt.Sprintf("; skipped %s: no longer stored, or no original queue", output.Count(r.Skipped))
				}
				return env.Print.Sentence("%s", text)
			})
		},
	}
	f := cmd.Flags()
	addSequences(cmd, &sequences)
	f.StringVar(&o.To, "to", "", "destination queue; default: the original queue of each dead letter")
	f.StringVarP(&o.Subscription, "subscription", "s", "",
		"remove messages from this subscription only; default: from all subscriptions")
	return cmd
}

func removeCommand(env *cli.Env) *cobra.Command {
	var subscription string
	var sequences []string
	var yes bool
	cmd := &cobra.Command{
		Use: "remove NAME", Short: "Delete messages by sequence",
		Long: `Delete messages of a queue, or acknowledge them for one subscription. Messages kept by a retention
setting can still be read by other subscriptions. On a terminal, the command asks for confirmation. To list
sequences, use lockstep browse.`,
		Example: `  lockstep queue remove orders --sequence 17
  lockstep queue remove orders --sequence 17,20-25 --yes
  lockstep queue remove prices --subscription audit --sequence 3`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			chosen, n, err := parseSequences(sequences)
			if err != nil {
				return err
			}
			label := "queue " + args[0]
			if subscription != "" {
				label = "subscription " + subscription + " of " + label
			}
			if err := env.Confirm(cmd.Context(), yes, "Remove %s from %s? Existing messages will be deleted permanently.",
				output.Plural(n, "message"), label); err != nil {
				return err
			}
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				n, err := admin.New(c).RemoveMessages(ctx, args[0], subscription, chosen, 0)
				if err != nil {
					return err
				}
				return countResult(env, "removed %s from "+args[0], n)
			})
		},
	}
	addSequences(cmd, &sequences)
	cmd.Flags().StringVarP(&subscription, "subscription", "s", "",
		"remove messages from this subscription only; default: from all subscriptions")
	cli.AddYes(cmd, &yes)
	return cmd
}

func addSequences(cmd *cobra.Command, sequences *[]string) {
	cmd.Flags().StringSliceVar(sequences, "sequence", nil,
		"message sequence, such as 17, or range, such as 20-25; may be repeated")
}

// parseSequences parses ranges, and returns them with the number of messages.
func parseSequences(texts []string) (list []admin.SequenceRange, messages uint64, err error) {
	if len(texts) == 0 {
		return nil, 0, cli.Usage("--sequence is required; to list sequences, use lockstep browse")
	}
	for _, text := range texts {
		first, last, ranged := strings.Cut(strings.TrimSpace(text), "-")
		if !ranged {
			last = first
		}
		from, err := strconv.ParseUint(first, 10, 64)
		to, errTo := strconv.ParseUint(last, 10, 64)
		if err != nil || errTo != nil || from == 0 || to < from {
			return nil, 0, cli.Usage("--sequence %q: must be a sequence such as 17, or a range such as 20-25; sequences "+
				"start at 1", text)
		}
		list = append(list, admin.SequenceRange{First: from, Last: to})
		messages += to - from + 1
	}
	return list, messages, nil
}
