// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/queueconfig"
)

// PolicyCommand returns the `lockstep policy` command.
func PolicyCommand(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "policy", Aliases: []string{"policies"}, GroupID: "use",
		Short: "Manage defaults and limits of queues",
		Long: `A policy sets defaults and upper limits of the queues that match a name pattern. In a pattern, "*" matches
any number of characters, and "?" one character. Policies apply to existing and to new queues; the pattern for the
partitions of orders is "orders#*". Options that are set on a queue itself override the defaults of policies, but not
the limits.

In a fleet, each pair has its own policies. The commands use those of the pair in --addr.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(putPolicyCommand(env), listPoliciesCommand(env), deletePolicyCommand(env))
	return cmd
}

type queuePolicyState struct {
	Pattern  string         `json:"pattern"`
	Priority uint32         `json:"priority"`
	Defaults map[string]any `json:"defaults"`
	Limits   map[string]any `json:"limits"`
}

func newQueuePolicyState(p *admin.Policy) queuePolicyState {
	limits := p.Limits.Config()
	state := queuePolicyState{
		Pattern: p.Pattern, Priority: p.Priority, Defaults: configJSON(&p.Defaults), Limits: configJSON(&limits),
	}
	for values, c := range map[*map[string]any]*admin.QueueConfig{&state.Defaults: &p.Defaults, &state.Limits: &limits} {
		for _, f := range queueconfig.Fields() {
			if f.Value(c).IsZero() {
				delete(*values, f.Name)
			}
		}
	}
	return state
}

func optionsText(c *admin.QueueConfig) string {
	var parts []string
	for _, f := range queueconfig.Fields() {
		if f.Get(c) != nil {
			parts = append(parts, f.Name+" "+f.Text(c))
		}
	}
	return strings.Join(parts, ", ")
}

func putPolicyCommand(env *cli.Env) *cobra.Command {
	var given, limits configFlags
	var p admin.Policy
	cmd := &cobra.Command{
		Use: "put PATTERN", Short: "Set a policy",
		Long: `Set the policy of a pattern, or replace it as a whole. Policies are not merged. If several policies that
match a queue have defaults, only the defaults of the policy with the highest priority apply, or, if priorities are
equal, those of the first pattern in byte order. Limits are selected in the same way, independently of the defaults.

The change takes effect immediately on existing queues and their messages: for example, messages that are older than
the new TTL expire. With --temporary, queues without consumers for this time are deleted with their messages.

The dead-letter queue of a policy must exist.`,
		Example: `  lockstep policy put 'orders.*' --max-deliveries 5 --dead-letter orders.dead --priority 10
  lockstep policy put '*' --limit-max-messages 1000000 --limit-max-bytes 10GiB
  lockstep policy put 'temp.*' --ttl 1h --temporary 10m`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			p.Pattern = args[0]
			given.change(cmd, &p.Defaults)
			p.Limits = admin.LimitsOf(limits.config)
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				set, err := admin.New(c).PutPolicy(ctx, p)
				if err != nil {
					return err
				}
				return env.Print.Result(newQueuePolicyState(&set), "set policy %s", set.Pattern)
			})
		},
	}
	fields := slices.DeleteFunc(queueconfig.Fields(), func(f queueconfig.Field) bool { return f.Name == "priorities" })
	given.registerFields(cmd, fields)
	cmd.Flags().Uint32Var(&p.Priority, "priority", 0,
		"priority among policies that match a queue, up to 1000000; the highest applies")
	for _, f := range queueconfig.Fields() {
		if slices.Contains(admin.LimitFields(), f.Name) {
			cmd.Flags().Var(configFlag{f, &limits.config}, "limit-"+f.Flag(), "upper limit of --"+f.Flag()+"; 0: no limit")
		}
	}
	return cmd
}

func listPoliciesCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List policies",
		Long: "List all policies with their defaults and limits. To show which options of a queue are set by policies, " +
			"use lockstep queue show.",
		Example: "  lockstep policy list\n  lockstep policy list --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				policies, err := admin.New(c).Policies(ctx)
				if err != nil {
					return err
				}
				rows := make([][]any, 0, len(policies))
				for i := range policies {
					p, limits := &policies[i], policies[i].Limits.Config()
					if err := env.Print.Object(newQueuePolicyState(p)); err != nil {
						return err
					}
					rows = append(rows, []any{
						p.Pattern, p.Priority, cmp.Or(optionsText(&p.Defaults), "-"), cmp.Or(optionsText(&limits), "-"),
					})
				}
				if len(rows) == 0 {
					return env.Print.Sentence("no policies")
				}
				return env.Print.Table([]string{"Pattern", "Priority", "Defaults", "Limits"}, rows)
			})
		},
	}
}

func deletePolicyCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "delete PATTERN", Aliases: []string{"rm"}, Short: "Delete a policy",
		Long: `Delete the policy of a pattern. Queues keep the options that are set on them. Their other options get the
defaults of another matching policy, or their default values. This can lose messages: without the retention of the
policy, retained messages are deleted, and without its dead-letter queue, rejected messages are discarded.`,
		Example: "  lockstep policy delete 'orders.*'",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if err := admin.New(c).DeletePolicy(ctx, args[0]); err != nil {
					return err
				}
				return env.Print.Result(map[string]string{"deleted": args[0]}, "deleted policy %s", args[0])
			})
		},
	}
}

// optionNames returns the names of the configuration fields that have the given flags. It returns a usage error for an
// unknown flag.
func optionNames(flags []string) (fields []string, err error) {
	var known []string
	for _, f := range queueconfig.Fields() {
		known = append(known, f.Flag())
		if slices.Contains(flags, f.Flag()) {
			fields = append(fields, f.Name)
		}
	}
	for _, name := range flags {
		if !slices.Contains(known, name) {
			return nil, cli.Usage("--reset %q: must be one of %s", name, strings.Join(known, ", "))
		}
	}
	return fields, nil
}

// printSources prints the options of a queue that do not have the default value, with their sources. It prints
// nothing if no policy applies to the queue.
func printSources(env *cli.Env, q admin.Queue) error {
	if q.Own.Policy == "" && q.Own.LimitPolicy == "" {
		return nil
	}
	var rows [][]any
	for _, f := range queueconfig.Fields() {
		if source := q.Source(f.Name); source != "default" {
			rows = append(rows, []any{f.Name, fmt.Sprint(f.Own(&q.Config)), source})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	if err := env.Print.Sentence(""); err != nil {
		return err
	}
	return env.Print.Table([]string{"Option", "Value", "Source"}, rows)
}
