// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// SubscriptionCommand returns the `lockstep subscription` command.
func SubscriptionCommand(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "subscription", Aliases: []string{"sub"}, GroupID: "use",
		Short: "Create, alter, list and delete subscriptions of a queue",
		Long: `A subscription is a durable cursor on a queue: it gets every message once, whatever other subscriptions do.
A message is stored once, and kept until every subscription has acknowledged it.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(createSubscriptionCommand(env), alterSubscriptionCommand(env), listSubscriptionsCommand(env),
		deleteSubscriptionCommand(env))
	return cmd
}

func createSubscriptionCommand(env *cli.Env) *cobra.Command {
	var start string
	var o client.SubscriptionOptions
	var given policyFlags
	cmd := &cobra.Command{
		Use: "create QUEUE NAME", Short: "Add a subscription",
		Long: `Add a subscription. With --filter it gets only the messages that match: an expression in CEL (https://cel.dev) over
properties, message_id, correlation_id, reply_to, content_type, subject, group, priority, published_at, expires_at,
deliver_at and size. The others are acknowledged when a consumer has the node read them, and count in the backlog until
then.

What is given of --max-deliveries, --dead-letter and the redelivery flags holds for this subscription instead of what its
queue has.`,
		Example: `  lockstep subscription create prices audit --start earliest
  lockstep subscription create events replay --start 2h
  lockstep subscription create orders large --filter 'properties.amount > 1000 && properties.region == "eu"'
  lockstep subscription create orders urgent --filter 'priority >= 7 || subject.startsWith("alarm.")'
  lockstep subscription create orders billing --max-deliveries 3 --dead-letter billing.dead`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.At, err = parsePlace("--start", start); err != nil {
				return err
			}
			o.Redelivery = given.given(cmd)
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				s, created, err := c.CreateSubscriptionWith(ctx, args[0], args[1], o)
				if err != nil {
					return err
				}
				if err := env.Print.Object(newSubscriptionState(s)); err != nil {
					return err
				}
				if !created {
					return env.Print.Sentence("subscription %s of %s is there already", s.Name, args[0])
				}
				return env.Print.Sentence("created subscription %s of %s, with %s to read", s.Name, args[0],
					output.Plural(s.Backlog, "message"))
			})
		},
	}
	cmd.Flags().StringVar(&start, "start", "latest",
		"latest: messages published from now on; earliest: also all that another subscription has still to "+
			"acknowledge, or "+
			"that are retained; or from a sequence or a time on, as for queue seek")
	cmd.Flags().StringVar(&o.Filter, "filter", "", "only messages that match this expression in CEL; default: all")
	given.register(cmd)
	cmd.Flags().BoolVar(&o.IfNotExists, "if-not-exists", false, "succeed when it is there already")
	return cmd
}

func deleteSubscriptionCommand(env *cli.Env) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "delete QUEUE NAME", Aliases: []string{"rm"},
		Short: "Delete a subscription; messages that only it had still to read are gone",
		Long: "Delete a subscription. Messages that only it had still to read are gone; on a terminal it asks first " +
			"if it has any to read.",
		Example: "  lockstep subscription delete prices audit",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				what := "Delete subscription " + args[1] + " of queue " + args[0]
				if err := env.ConfirmMessages(ctx, c, yes, args[0], args[1], what); err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(ctx, env.Timeout)
				defer cancel()
				if err := c.DeleteSubscription(ctx, args[0], args[1]); err != nil {
					return err
				}
				if err := env.Print.Object(map[string]bool{"deleted": true}); err != nil {
					return err
				}
				return env.Print.Sentence("deleted subscription %s of %s", args[1], args[0])
			})
		},
	}
	cli.AddYes(cmd, &yes)
	return cmd
}

func listSubscriptionsCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "list [QUEUE]", Aliases: []string{"ls"}, Short: "List the subscriptions of a queue, or of all queues",
		Long: `Show each subscription with what it has still to acknowledge, what is with consumers, how many
consumers it has, and its filter.`,
		Example: "  lockstep subscription list\n  lockstep subscription list prices --output json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if len(args) == 0 {
					return listAllSubscriptions(ctx, env, c)
				}
				q, err := c.GetQueue(ctx, args[0])
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

// listAllSubscriptions lists the subscriptions of all queues, with queue names.
func listAllSubscriptions(ctx context.Context, env *cli.Env, c *client.Client) error {
	var rows [][]any
	for q, err := range c.Queues(ctx, "") {
		if err != nil {
			return err
		}
		for _, s := range q.Subscriptions {
			err := env.Print.Object(struct {
				Queue string `json:"queue"`
				subscriptionState
			}{q.Name, newSubscriptionState(s)})
			if err != nil {
				return err
			}
			rows = append(rows, []any{
				q.Name, s.Name, output.Count(s.Backlog), output.Count(s.InFlight), output.Count(s.Consumers), s.Floor, s.Filter,
				policyText(s.Redelivery), activeText(s.Active),
			})
		}
	}
	if len(rows) == 0 {
		return env.Print.Sentence("no subscriptions")
	}
	return env.Print.Table([]string{
		"Queue", "Subscription", ">Backlog", ">In flight", ">Consumers", "Acknowledged below", "Filter",
		"Instead of the queue's", "Active consumer",
	}, rows)
}
