// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// SubscriptionCommand returns the `lockstep subscription` command.
func SubscriptionCommand(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "subscription", Aliases: []string{"sub"}, GroupID: "use",
		Short: "Manage subscriptions of a queue",
		Long: `A subscription is a durable cursor on a queue: from its start position on, it receives the messages that match
its filter, independently of other subscriptions.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(createSubscriptionCommand(env), alterSubscriptionCommand(env), listSubscriptionsCommand(env),
		pauseSubscriptionCommand(env), resumeSubscriptionCommand(env),
		deleteSubscriptionCommand(env))
	return cmd
}

func createSubscriptionCommand(env *cli.Env) *cobra.Command {
	var start string
	var o admin.SubscriptionOptions
	var given policyFlags
	cmd := &cobra.Command{
		Use: "create QUEUE NAME", Short: "Create a subscription",
		Long: `Create a subscription. By default, it receives the messages that are published from now on (--start). With
--filter, it receives only matching messages, and acknowledges the others. The filter is an expression in CEL
(https://cel.dev) with the variables properties, message_id, correlation_id, reply_to, content_type, subject, group,
priority, published_at, expires_at, deliver_at and size.`,
		Example: `  lockstep subscription create prices audit --start earliest
  lockstep subscription create events replay --start 2h
  lockstep subscription create orders large --filter 'properties.amount > 1000 && properties.region == "eu"'
  lockstep subscription create orders urgent --filter 'priority >= 7 || subject.startsWith("alarm.")'
  lockstep subscription create orders billing --max-deliveries 3 --dead-letter billing.dead`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.At, err = parsePosition("--start", start); err != nil {
				return err
			}
			o.Redelivery = given.given(cmd)
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				s, created, err := admin.New(c).CreateSubscription(ctx, args[0], args[1], o)
				if err != nil {
					return err
				}
				if err := env.Print.Object(newSubscriptionState(s)); err != nil {
					return err
				}
				if !created {
					return env.Print.Sentence("subscription %s of %s already exists", s.Name, args[0])
				}
				return env.Print.Sentence("created subscription %s of %s, backlog: %s", s.Name, args[0],
					output.Plural(s.Backlog, "message"))
			})
		},
	}
	cmd.Flags().StringVar(&start, "start", "latest",
		"start position: latest, earliest (all stored messages), or a sequence or time as for lockstep queue seek")
	cmd.Flags().StringVar(&o.Filter, "filter", "", "CEL expression that messages must match; default: all messages")
	given.register(cmd)
	cmd.Flags().BoolVar(&o.IfNotExists, "if-not-exists", false,
		"succeed if the subscription already exists; it is not changed")
	return cmd
}

func deleteSubscriptionCommand(env *cli.Env) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "delete QUEUE NAME", Aliases: []string{"rm"},
		Short: "Delete a subscription and its backlog",
		Long: `Delete a subscription. Messages that no other subscription needs are deleted, except in a queue with
retention. While a queue has no subscription, it stores new messages only with retention. Without a terminal, the
command does not ask for confirmation.`,
		Example: "  lockstep subscription delete prices audit",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				label := "Delete subscription " + args[1] + " of queue " + args[0]
				if err := env.ConfirmMessages(ctx, c, yes, args[0], args[1], label); err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(ctx, env.Timeout)
				defer cancel()
				if err := admin.New(c).DeleteSubscription(ctx, args[0], args[1]); err != nil {
					return err
				}
				return env.Print.Result(map[string]bool{"deleted": true}, "deleted subscription %s of %s", args[1], args[0])
			})
		},
	}
	cli.AddYes(cmd, &yes)
	return cmd
}

func listSubscriptionsCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "list [QUEUE]", Aliases: []string{"ls"}, Short: "List subscriptions of one or all queues",
		Long: `List the subscriptions of a queue or, without QUEUE, of all queues on which the caller has a right.
In a fleet, without QUEUE, the subscriptions of all pairs are listed. This requires the operate right on the pair in
--addr; without it, only the subscriptions of that pair are listed, with a warning.`,
		Example: "  lockstep subscription list\n  lockstep subscription list prices --output json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return listAllSubscriptions(cmd.Context(), env)
			}
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				q, err := admin.New(c).GetQueue(ctx, args[0])
				if err != nil {
					return err
				}
				for _, s := range q.Subscriptions {
					if err := env.Print.Object(newSubscriptionState(s)); err != nil {
						return err
					}
				}
				if len(q.Subscriptions) == 0 {
					return env.Print.Sentence("queue %s has no subscriptions", q.Name)
				}
				return printSubscriptions(env, q)
			})
		},
	}
}

func listAllSubscriptions(ctx context.Context, env *cli.Env) error {
	var all []found
	var rows [][]any
	err := eachPair(ctx, env, func(ctx context.Context, pair string, c *client.Client) error {
		for q, err := range admin.New(c).Queues(ctx, "") {
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
	for _, q := range all {
		for _, s := range q.Subscriptions {
			err := env.Print.Object(struct {
				Queue string `json:"queue"`
				Pair  string `json:"pair,omitempty"`
				subscriptionState
			}{q.Name, q.pair, newSubscriptionState(s)})
			if err != nil {
				return err
			}
			rows = append(rows, q.row(
				q.Name, s.Name, output.Count(s.Backlog), output.Count(s.InFlight), output.Count(s.Consumers), s.Floor, s.Filter,
				policyText(s.Redelivery), activeText(s.Active),
			))
		}
	}
	if len(rows) == 0 {
		return env.Print.Sentence("no subscriptions")
	}
	return env.Print.Table(header(all,
		"Queue", "Subscription", ">Backlog", ">In flight", ">Consumers", "Acknowledged below", "Filter",
		"Overrides", "Active consumer",
	), rows)
}
