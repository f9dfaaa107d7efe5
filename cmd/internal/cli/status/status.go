// SPDX-License-Identifier: Apache-2.0

// Package status implements the command that shows the status of the nodes.
package status

import (
	"context"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
)

// Command returns the `lockstep status` command.
func Command(env *cli.Env) *cobra.Command {
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use: "status", GroupID: "operate",
		Short: "Show the status of the nodes",
		Long: `Show the role, the log positions and the numbers of queues and messages of each node in --addr, the cluster
record, and conditions with the recommended actions. A node that does not respond within 2 seconds, or within
--timeout if given, is listed with an error. The exit code is 1 if no node responds.

With --watch, the status is updated until Ctrl-C, and the exit code is 0. The time limit for responses is --interval,
but at least 500 ms. On a terminal, the status is updated in place, with rates. With --output json, or without a
terminal, it is printed after each change.`,
		Example: "  lockstep status\n  lockstep status --watch\n  lockstep status --output json | jq '.nodes[].role'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if watch {
					return watchStatus(ctx, env, c, interval)
				}
				timeout := env.Timeout
				if !cmd.Flags().Changed("timeout") {
					timeout = min(timeout, 2*time.Second) // a node that hangs does not delay the status of the other nodes
				}
				s := env.QueryNodes(ctx, c, timeout)
				if err := printStatus(env, s); err != nil {
					return err
				}
				if s.Answered() == 0 {
					return cli.NoAnswer(ctx, s)
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "update the status until Ctrl-C")
	cmd.Flags().DurationVar(&interval, "interval", 500*time.Millisecond, "polling interval of --watch")
	return cmd
}

func printStatus(env *cli.Env, s pairstatus.Status) error {
	if env.Print.JSON() {
		return env.Print.Object(s)
	}
	if err := printNodes(env, s); err != nil {
		return err
	}
	if err := printConditions(env, s.Conditions); err != nil {
		return err
	}
	if err := printLeft(env, s); err != nil {
		return err
	}
	if s.Pair == nil {
		return printGroups(env, "\n", s)
	}
	reachable := "reachable"
	if !s.Pair.CoordinatorReachable {
		reachable = "NOT reachable"
	}
	err := env.Print.Sentence("\npair %s: term %d, config %d, in sync: %s; coordinator %s is %s",
		s.Pair.PairID, s.Pair.Term, s.Pair.Config, strings.Join(s.Pair.InSync, " and "), s.Pair.Coordinator, reachable)
	if err == nil {
		err = printGroups(env, "", s)
	}
	if err == nil && s.Pair.Paused != "" {
		err = env.Print.Sentence("PAUSED %s; automatic failover is disabled until lockstep resume", s.Pair.Paused)
	}
	if err == nil {
		err = printChanges(env, s)
	}
	if err != nil || s.PlanText == "" {
		return err
	}
	return env.Print.Sentence("%s", s.PlanText)
}

// printChanges prints the last forced failover, if it is not settled, and the time until an automatic failback.
func printChanges(env *cli.Env, s pairstatus.Status) error {
	if f := s.Pair.Forced; f != nil && !f.Settled {
		if err := env.Print.Sentence("FORCED: node %s was made active %s", s.NodeName(f.NodeID), f); err != nil {
			return err
		}
	}
	if s.Pair.FailbackAt.IsZero() {
		return nil
	}
	left := max(time.Until(s.Pair.FailbackAt), 0).Round(time.Second)
	return env.Print.Sentence("failback to the preferred node in %s", left)
}

// printGroups prints the role of the pair among two sites, and its membership in a fleet.
func printGroups(env *cli.Env, before string, s pairstatus.Status) error {
	if s.Site != nil {
		if err := env.Print.Sentence("%s%s", before, s.Site); err != nil {
			return err
		}
		before = ""
	}
	if s.Fleet != nil {
		return env.Print.Sentence("%s%s", before, s.Fleet)
	}
	return nil
}

func printConditions(env *cli.Env, all []pairstatus.Condition) error {
	for i := range all {
		c := &all[i]
		text := strings.ToUpper(c.Severity) + " " + c.Condition
		if c.Node != "" {
			text += " on " + c.Node
		}
		text += " since " + output.LocalTime(c.Since)
		if c.Details != "" {
			text += ": " + c.Details
		}
		for _, line := range []string{c.Meaning, c.Do} {
			if line != "" {
				text += "\n  " + line
			}
		}
		if err := env.Print.Sentence("%s", text); err != nil {
			return err
		}
	}
	return nil
}
