// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/store/units"
)

type activityState struct {
	Published    *float64   `json:"published_per_second,omitempty"`
	Delivered    *float64   `json:"delivered_per_second,omitempty"`
	Acknowledged *float64   `json:"acknowledged_per_second,omitempty"`
	OldestAt     *time.Time `json:"oldest_at,omitempty"`
	Consumers    uint32     `json:"consumers"`
}

func newActivityState(a *admin.QueueActivity) *activityState {
	if a == nil {
		return nil
	}
	state := &activityState{Consumers: a.Consumers}
	if a.Rates {
		state.Published, state.Delivered, state.Acknowledged = &a.Published, &a.Delivered, &a.Acknowledged
	}
	if !a.OldestAt.IsZero() {
		at := a.OldestAt.UTC()
		state.OldestAt = &at
	}
	return state
}

type listFlags struct {
	options  admin.ListOptions
	sort     string
	activity bool
	// partitions lists partitions instead of partitioned queues.
	partitions bool
}

func listCommand(env *cli.Env) *cobra.Command {
	var given listFlags
	cmd := &cobra.Command{
		Use: "list [PREFIX]", Aliases: []string{"ls"}, Short: "List queues",
		Long: `List the queues with names that begin with PREFIX, or all queues. With any flag of this command except
--partitions, the list contains each partition instead of partitioned queues, the activity of each queue, and at most
--limit queues.

In a fleet, the queues of all pairs are listed. This requires the operate right on the pair in --addr; without it, only
the queues of that pair are listed, with a warning.`,
		Example: `  lockstep queue list
  lockstep queue list orders/ --output json
  lockstep queue list --partitions
  lockstep queue list --sort age --limit 10
  lockstep queue list --contains dead --sort messages
  lockstep queue list --activity --limit 50 --offset 100`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				given.options.Prefix = args[0]
			}
			for _, name := range []string{"sort", "contains", "descending", "limit", "offset", "activity"} {
				if cmd.Flags().Changed(name) {
					if !cmd.Flags().Changed("descending") {
						given.options.Descending = given.sort != admin.OrderName.String()
					}
					return listOrdered(cmd.Context(), env, &given)
				}
			}
			return listAll(cmd.Context(), env, given.options.Prefix, given.partitions)
		},
	}
	f := cmd.Flags()
	f.StringVar(&given.sort, "sort", "name", "order: "+strings.Join(admin.QueueOrders(), ", "))
	f.BoolVar(&given.options.Descending, "descending", false,
		"descending order, such as the oldest first; the default except for --sort name")
	f.StringVar(&given.options.Contains, "contains", "", "only queues whose names contain this text, ignoring case")
	f.Uint32VarP(&given.options.Limit, "limit", "n", 100,
		"maximum number of queues, up to 1000; in a fleet, up to 1000 together with --offset")
	f.Uint32Var(&given.options.Offset, "offset", 0, "number of queues to skip")
	f.BoolVar(&given.activity, "activity", false, "show rates, and the age of the oldest message")
	f.BoolVar(&given.partitions, "partitions", false, "list each partition instead of partitioned queues")
	// Fails only if the flag does not exist.
	_ = cmd.RegisterFlagCompletionFunc("sort", cobra.FixedCompletions(admin.QueueOrders(),
		cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func listAll(ctx context.Context, env *cli.Env, prefix string, partitions bool) error {
	var all []found
	err := eachPair(ctx, env, func(ctx context.Context, pair string, c *client.Client) error {
		for q, err := range admin.New(c).Queues(ctx, prefix) {
			if err != nil {
				return err
			}
			all = append(all, found{q, pair})
		}
		return nil
	})
	if err != nil {
		return err
	}
	if inFleet(all) {
		sortQueues(all, admin.ListOptions{Order: admin.OrderName})
	}
	if !partitions {
		if all, err = withPartitioned(ctx, env, all); err != nil {
			return err
		}
	}
	list, rows := []queueState{}, [][]any{}
	for _, q := range all {
		consumers := uint32(0)
		for _, s := range q.Subscriptions {
			consumers += s.Consumers
		}
		list = append(list, newFoundState(q))
		name := q.Name
		if len(q.Partitions) > 0 {
			name = title(q.Queue)
		}
		rows = append(rows, q.row(
			name, output.Count(q.Messages), output.Bytes(q.Bytes), output.Count(len(q.Subscriptions)),
			output.Count(consumers),
		))
	}
	if err := env.Print.Object(list); err != nil {
		return err
	}
	if len(rows) == 0 {
		return env.Print.Sentence("no queues")
	}
	return env.Print.Table(header(all, "Queue", ">Messages", "Size", ">Subscriptions", ">Consumers"), rows)
}

func listOrdered(ctx context.Context, env *cli.Env, given *listFlags) error {
	order, err := admin.ParseQueueOrder(given.sort)
	if err != nil {
		return cli.Usage("--sort %q: must be one of %s", given.sort, strings.Join(admin.QueueOrders(), ", "))
	}
	given.options.Order = order
	list, err := ordered(ctx, env, given.options)
	if err != nil {
		return err
	}
	states, rows := []queueState{}, [][]any{}
	for _, q := range list.queues {
		a := q.Activity
		states = append(states, newFoundState(q))
		rows = append(rows, q.row(
			q.Name, output.Count(q.Messages), output.Bytes(q.Bytes), rate(a, a.Published), rate(a, a.Delivered),
			rate(a, a.Acknowledged), age(a.OldestAt), output.Count(a.Consumers),
		))
	}
	if err := env.Print.Object(states); err != nil {
		return err
	}
	if len(rows) == 0 {
		return env.Print.Sentence("no queues")
	}
	if err := env.Print.Table(header(list.queues,
		"Queue", ">Messages", "Size", ">Published/s", ">Delivered/s", ">Acknowledged/s", "Oldest", ">Consumers",
	), rows); err != nil {
		return err
	}
	if n := int(given.options.Offset) + len(rows); n < list.total {
		return env.Print.Sentence("%s of %s queues; use --offset %d to list more", output.Count(len(rows)),
			output.Count(list.total), n)
	}
	return nil
}

type orderedList struct {
	queues []found
	total  int
}

// ordered returns a page of the queues of all pairs. With several pairs, it requests all earlier pages as well.
func ordered(ctx context.Context, env *cli.Env, o admin.ListOptions) (list orderedList, err error) {
	err = eachPair(ctx, env, func(ctx context.Context, pair string, c *client.Client) error {
		page := o
		if pair != "" {
			if page.Offset, page.Limit = 0, o.Offset+o.Limit; page.Limit > maxOrdered {
				return cli.Usage("in a fleet, --offset and --limit must not exceed %d in total", maxOrdered)
			}
		}
		one, err := measured(ctx, c, page)
		if err != nil {
			return err
		}
		list.total += one.Total
		for _, q := range one.Queues {
			list.queues = append(list.queues, found{q, pair})
		}
		return nil
	})
	if err == nil && inFleet(list.queues) {
		sortQueues(list.queues, o)
		from := min(int(o.Offset), len(list.queues))
		list.queues = list.queues[from:min(from+int(o.Limit), len(list.queues))]
	}
	return list, err
}

// measured lists queues with their rates. If the rates or the order are not known yet, it lists the queues again after
// about a second.
func measured(ctx context.Context, c *client.Client, o admin.ListOptions) (admin.QueueList, error) {
	list, err := admin.New(c).ListQueues(ctx, o)
	if err != nil || len(list.Queues) == 0 || list.Queues[0].Activity.Rates && !list.Uncertain {
		return list, err
	}
	if err := cli.WaitRates(ctx); err != nil {
		return list, err
	}
	return admin.New(c).ListQueues(ctx, o)
}

func rate(a *admin.QueueActivity, perSecond float64) string {
	if !a.Rates {
		return ""
	}
	return units.Rate(perSecond)
}

func age(at time.Time) string {
	if at.IsZero() {
		return ""
	}
	return units.Age(max(time.Since(at), 0))
}
