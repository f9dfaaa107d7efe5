package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/out"
)

func (a *app) subscriptionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "subscription", Aliases: []string{"sub"}, GroupID: "use",
		Short: "Create and delete subscriptions of a queue",
		Long: `A subscription is a durable cursor on a queue: it gets every message once, whatever other subscriptions do.
A message is stored once, and kept until every subscription has acknowledged it. ` + "`lockstep queue show` lists them.",
		Args: cobra.NoArgs,
		RunE: needsSubcommand,
	}
	cmd.AddCommand(a.subscriptionCreate(), a.subscriptionDelete())
	return cmd
}

func (a *app) subscriptionCreate() *cobra.Command {
	var start string
	var ifNotExists bool
	cmd := &cobra.Command{
		Use: "create QUEUE NAME", Short: "Add a subscription",
		Example: "  lockstep subscription create prices audit --start earliest",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			from := client.StartLatest
			switch start {
			case "latest":
			case "earliest":
				from = client.StartEarliest
			default:
				return usage("--start %q is neither latest nor earliest", start)
			}
			return a.withTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				s, created, err := c.CreateSubscription(ctx, args[0], args[1], from, ifNotExists)
				if err != nil {
					return err
				}
				if err := a.print.Object(subscriptionJSON(s)); err != nil {
					return err
				}
				if !created {
					return a.print.Sentence("subscription %s of %s is there already", s.Name, args[0])
				}
				return a.print.Sentence("created subscription %s of %s, with %s to read", s.Name, args[0], out.Plural(s.Backlog, "message"))
			})
		},
	}
	cmd.Flags().StringVar(&start, "start", "latest",
		"latest: messages published from now on; earliest: also all that another subscription has still to acknowledge")
	cmd.Flags().BoolVar(&ifNotExists, "if-not-exists", false, "succeed when it is there already")
	return cmd
}

func (a *app) subscriptionDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete QUEUE NAME", Aliases: []string{"rm"}, Short: "Delete a subscription; messages that only it had still to read are gone",
		Example: "  lockstep subscription delete prices audit",
		Args:    cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if err := c.DeleteSubscription(ctx, args[0], args[1]); err != nil {
					return err
				}
				if err := a.print.Object(map[string]bool{"deleted": true}); err != nil {
					return err
				}
				return a.print.Sentence("deleted subscription %s of %s", args[1], args[0])
			})
		},
	}
}
