// SPDX-License-Identifier: Apache-2.0

package message

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
)

// BrowseCommand returns the `lockstep browse` command.
func BrowseCommand(env *cli.Env) *cobra.Command {
	var o client.BrowseOptions
	var bodies bool
	cmd := &cobra.Command{
		Use: "browse QUEUE", GroupID: "use",
		Short: "Show messages without consuming them",
		Long: `Print the stored messages of a queue as a table, in the order of their sequences, without consuming them.
Messages that are published after the start of the command are not printed. Messages that no reachable node can read
are skipped; the exit code is then 1. To browse a partitioned queue, name one of its partitions, such as orders#0/8.

The CEL expression of --filter can use the variables of lockstep subscription create --filter, and body for fields of
JSON bodies.`,
		Example: `  lockstep browse orders --limit 20
  lockstep browse orders --newest --limit 20
  lockstep browse orders --filter 'body.customer.id == "4711" && published_at > timestamp("2026-11-28T00:00:00Z")'
  lockstep browse prices --subscription audit --from 1000 --output json
  lockstep browse orders --bodies > all.txt`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return browse(ctx, env, c, args[0], o, bodies)
			})
		},
	}
	cmd.Flags().StringVarP(&o.Subscription, "subscription", "s", "",
		"only messages that this subscription has not acknowledged, without delayed messages; default: all stored messages")
	cmd.Flags().StringVar(&o.Filter, "filter", "", "CEL expression that messages must match; default: all messages")
	cmd.Flags().BoolVar(&o.Newest, "newest", false, "print messages in descending order of their sequences")
	cmd.Flags().Uint64Var(&o.From, "from", 0, "lowest sequence; 0: that of the oldest message")
	cmd.Flags().Uint64Var(&o.Before, "before", 0, "only lower sequences; 0: no limit")
	cmd.Flags().Uint64VarP(&o.Limit, "limit", "n", 0, "maximum number of messages; 0: unlimited")
	cmd.Flags().BoolVar(&o.HeadersOnly, "headers-only", false, "omit message bodies")
	cmd.Flags().BoolVar(&bodies, "bodies", false, "print message bodies, each followed by a newline, instead of a table")
	return cmd
}

func browse(
	ctx context.Context, env *cli.Env, c *client.Client, queue string, o client.BrowseOptions, bodies bool,
) error {
	if _, err := env.WaitActive(ctx, c); err != nil {
		return err
	}
	const rowsPerTable = 1000 // to limit memory, a long listing is printed in parts
	var rows [][]any
	each := env.Print.JSON() || bodies
	search := progress.NewSearch(env.Stderr, "browse "+queue, each && output.IsTerminal(env.Stdout))
	defer search.End()
	o.Progress = search.Set
	flush := func() error {
		if len(rows) == 0 {
			return nil
		}
		search.Clear()
		err := env.Print.Table([]string{"Sequence", "Published", "Deliveries", "Size", "Properties", "Body"}, rows)
		rows = rows[:0]
		return err
	}
	var corrupt []uint64
	o.Damaged = func(sequence uint64) { corrupt = append(corrupt, sequence) }
	found := false
	for m, err := range c.Browse(ctx, queue, o) {
		if err != nil {
			return err
		}
		found = true
		if each {
			if err := printMessage(env, from{queue: queue}, m, !o.HeadersOnly, nil); err != nil {
				return err
			}
			continue
		}
		rows = append(rows, []any{
			m.Sequence, m.PublishedAt.Local().Format(time.DateTime), m.DeliveryCount, output.Bytes(len(m.Body)),
			output.StoredProperties(&m), output.Body(m.Body),
		})
		if len(rows) == rowsPerTable {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	switch err := flush(); {
	case err != nil:
		return err
	case !found && !bodies && len(corrupt) == 0:
		return env.Print.Sentence("no messages")
	case len(corrupt) == 0:
		return nil
	}
	return cli.WithHint(fmt.Errorf("%w: skipped %s of %s that no node can read; first sequence: %d", client.ErrDataLoss,
		output.Plural(len(corrupt), "message"), queue, corrupt[0]),
		"`lockstep verify` to list them; if no replica site or backup has copies, `lockstep queue drop-corrupt %s` to "+
			"discard them", queue)
}
