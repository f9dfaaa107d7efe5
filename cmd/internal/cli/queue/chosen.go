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
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
)

type movedMessages struct {
	Moved   uint64 `json:"moved"`
	Skipped uint64 `json:"skipped"`
}

func moveCommand(env *cli.Env) *cobra.Command {
	var o admin.MoveOptions
	var which chosen
	cmd := &cobra.Command{
		Use: "move NAME", Short: "Move selected messages to another queue",
		Long: `Move messages of a queue, including those in flight, to the end of another queue of the same pair. Without
--to, dead letters are moved to their original queues; messages without an original queue on this pair are skipped.
Messages that are older than the TTL of the destination are skipped, because they would expire immediately. If the
destination has neither a subscription nor a retention, the moved messages are lost. After an error, the command can
be repeated; no message is moved twice.

Select messages with --sequence (up to 10,000, moved in one transaction) or with --filter (moved in batches, without a
time limit). To list sequences, or to check a filter, use lockstep browse.`,
		Example: `  lockstep queue move orders --to orders.repair --sequence 17
  lockstep queue move orders --to orders.repair --sequence 17,20-25 --sequence 31
  lockstep queue move prices --subscription audit --to audit.later --sequence 3
  lockstep queue move orders.dead --sequence 4
  lockstep queue move orders --to orders.repair --filter 'body.customer.id == "4711"'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := which.check(); err != nil {
				return err
			}
			return which.with(cmd.Context(), env, func(ctx context.Context, c *client.Client) error {
				var r admin.MoveResult
				err := which.run(env, "move messages of "+args[0], func(m admin.Matching) (err error) {
					r, err = admin.New(c).MoveMatching(ctx, args[0], m, o)
					return partly(err, "moved", r.Moved)
				}, func() (err error) {
					r, err = admin.New(c).MoveMessages(ctx, args[0], which.ranges, o)
					return err
				})
				if err != nil {
					return err
				}
				if err := env.Print.Object(movedMessages(r)); err != nil {
					return err
				}
				text := fmt.Sprintf("moved %s from %s", output.Plural(r.Moved, "message"), args[0])
				if r.Skipped > 0 {
					text += fmt.Sprintf("; skipped %s: no longer stored, no original queue, or older than the TTL "+
						"of the queue", output.Count(r.Skipped))
				}
				return env.Print.Sentence("%s", text)
			})
		},
	}
	f := cmd.Flags()
	which.addFlags(cmd)
	f.StringVar(&o.To, "to", "", "destination queue; default: the original queue of each dead letter")
	f.StringVarP(&o.Subscription, "subscription", "s", "",
		"move messages from this subscription only; other subscriptions keep them; default: from all subscriptions")
	return cmd
}

func removeCommand(env *cli.Env) *cobra.Command {
	var subscription string
	var which chosen
	var yes bool
	cmd := &cobra.Command{
		Use: "remove NAME", Short: "Delete selected messages",
		Long: `Acknowledge messages of a queue, including those in flight, for all subscriptions, or only for
--subscription. A message is deleted when all subscriptions have acknowledged it; a queue with retention keeps it
until the retention ends. Messages that a prepared transaction acknowledges are skipped. Without a terminal, the
command does not ask for confirmation.

Select messages with --sequence (up to 10,000) or with --filter (without a time limit). To list sequences, or to check
a filter, use lockstep browse.`,
		Example: `  lockstep queue remove orders --sequence 17
  lockstep queue remove orders --sequence 17,20-25 --yes
  lockstep queue remove prices --subscription audit --sequence 3
  lockstep queue remove orders --filter 'properties.test == "yes"' --yes`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := which.check(); err != nil {
				return err
			}
			label := "queue " + args[0]
			if subscription != "" {
				label = "subscription " + subscription + " of " + label
			}
			if err := env.Confirm(cmd.Context(), yes, "Remove %s from %s? This cannot be undone.",
				which.describe(), label); err != nil {
				return err
			}
			return which.with(cmd.Context(), env, func(ctx context.Context, c *client.Client) error {
				var n uint64
				err := which.run(env, "remove messages of "+args[0], func(m admin.Matching) (err error) {
					n, err = admin.New(c).RemoveMatching(ctx, args[0], subscription, m, 0)
					return partly(err, "removed", n)
				}, func() (err error) {
					n, err = admin.New(c).RemoveMessages(ctx, args[0], subscription, which.ranges, 0)
					return err
				})
				if err != nil {
					return err
				}
				return countResult(env, "removed %s from "+args[0], n)
			})
		},
	}
	which.addFlags(cmd)
	cmd.Flags().StringVarP(&subscription, "subscription", "s", "",
		"remove messages from this subscription only; default: from all subscriptions")
	cli.AddYes(cmd, &yes)
	return cmd
}

// chosen selects the messages of a command, by sequence or by a filter.
type chosen struct {
	sequences []string
	matching  admin.Matching

	ranges []admin.SequenceRange // parsed sequences
	count  uint64                // number of sequences in ranges
}

func (c *chosen) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&c.sequences, "sequence", nil,
		"message sequence, such as 17, or range, such as 20-25; may be repeated")
	f.StringVar(&c.matching.Filter, "filter", "", "CEL expression that messages must match, instead of --sequence")
	f.Uint64Var(&c.matching.From, "from", 0, "with --filter: lowest sequence; 0: that of the oldest message")
	f.Uint64Var(&c.matching.Before, "before", 0, "with --filter: only lower sequences; 0: up to the newest")
}

func (c *chosen) check() (err error) {
	switch {
	case c.matching.Filter != "" && len(c.sequences) > 0:
		return cli.Usage("--sequence and --filter are mutually exclusive")
	case c.matching.Filter != "":
		return nil
	case c.matching.From != 0 || c.matching.Before != 0:
		return cli.Usage("--from and --before require --filter")
	}
	c.ranges, c.count, err = parseSequences(c.sequences)
	return err
}

func (c *chosen) describe() string {
	if c.matching.Filter != "" {
		return "all messages that match " + c.matching.Filter
	}
	return output.Plural(c.count, "message")
}

// with connects to the pair and calls fn. With a filter, --timeout does not limit fn, because a search may take longer.
func (c *chosen) with(ctx context.Context, env *cli.Env, fn func(context.Context, *client.Client) error) error {
	if c.matching.Filter == "" {
		return env.WithTimeout(ctx, fn)
	}
	return env.WithClient(ctx, func(ctx context.Context, conn *client.Client) error {
		if _, err := env.WaitActive(ctx, conn); err != nil {
			return err
		}
		return fn(ctx, conn)
	})
}

func (c *chosen) run(env *cli.Env, label string, matching func(admin.Matching) error, listed func() error) error {
	if c.matching.Filter == "" {
		return listed()
	}
	search := progress.NewSearch(env.Stderr, label, false)
	defer search.End()
	which := c.matching
	which.Progress = search.Set
	return matching(which)
}

// partly adds to an error the number of messages that were changed before the error.
func partly(err error, verb string, n uint64) error {
	if err == nil || n == 0 {
		return err
	}
	return cli.WithHint(fmt.Errorf("%s %s, then: %w", verb, output.Plural(n, "message"), err),
		"the command again for the remaining messages")
}

// parseSequences parses sequences and ranges. It returns the ranges, and the number of sequences in them.
func parseSequences(texts []string) (list []admin.SequenceRange, messages uint64, err error) {
	if len(texts) == 0 {
		return nil, 0, cli.Usage("--sequence or --filter is required; to list sequences, use lockstep browse")
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
