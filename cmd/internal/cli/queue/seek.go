// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/store/units"
)

type moved struct {
	Sequence uint64 `json:"sequence"`
	Backlog  uint64 `json:"backlog"`
}

func seekCommand(env *cli.Env) *cobra.Command {
	var subscription, to string
	cmd := &cobra.Command{
		Use: "seek NAME", Short: "Move the position of a subscription",
		Long: `Move the position of a subscription. Messages before the new position are acknowledged. Messages from the
new position on are delivered if they are still stored, even if they were acknowledged. Without retention, a queue
deletes a message when all subscriptions have acknowledged it.

--to is one of:

  earliest    the oldest stored message
  latest      the next published message
  SEQUENCE    the first stored message with at least this sequence
  TIME        the first stored message published at or after this time:
              RFC 3339, 2026-11-21 09:30:00 in local time, or an age such as 36h

Stop the consumers first. Otherwise, a late acknowledgement can prevent the redelivery of a message.`,
		Example: `  lockstep queue seek events --to earliest
  lockstep queue seek events --subscription audit --to 2h
  lockstep queue seek events --to 2026-11-21T09:30:00Z
  lockstep queue seek events --to 120000`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if to == "" {
				return cli.Usage("--to is required: earliest, latest, a sequence or a time")
			}
			position, err := parsePosition("--to", to)
			if err != nil {
				return err
			}
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				r, err := admin.New(c).Seek(ctx, args[0], subscription, position)
				if err != nil {
					return err
				}
				at := "sequence " + output.Count(r.Sequence)
				if r.Sequence == 0 { // sequences belong to a partition
					at = to + " in all partitions"
				}
				return env.Print.Result(moved(r), "%s continues at %s, backlog: %s", args[0], at,
					output.Plural(r.Backlog, "message"))
			})
		},
	}
	cmd.Flags().StringVarP(&subscription, "subscription", "s", "", "subscription to move; default: \"default\"")
	cmd.Flags().StringVar(&to, "to", "", "earliest, latest, a sequence or a time")
	return cmd
}

func parsePosition(flag, text string) (admin.Position, error) {
	switch text {
	case "earliest":
		return admin.Earliest(), nil
	case "latest":
		return admin.Latest(), nil
	}
	if sequence, err := strconv.ParseUint(text, 10, 64); err == nil {
		if sequence == 0 {
			return admin.Position{}, cli.Usage("%s 0: sequences start at 1", flag)
		}
		return admin.AtSequence(sequence), nil
	}
	if ago, err := time.ParseDuration(units.ExpandDays(text)); err == nil {
		if ago < 0 {
			return admin.Position{}, cli.Usage("%s %s: an age must not be negative", flag, text)
		}
		return admin.Since(time.Now().Add(-ago)), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return admin.Since(t), nil
	}
	for _, form := range []string{time.DateTime, "2006-01-02T15:04:05", "2006-01-02 15:04"} {
		if t, err := time.ParseInLocation(form, text, time.Local); err == nil {
			return admin.Since(t), nil
		}
	}
	return admin.Position{}, cli.Usage("%s %q: must be earliest, latest, a sequence, a time (RFC 3339, or "+
		"2026-11-21 09:30:00 in local time) or an age (such as 2h or 7d)", flag, text)
}
