// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

// PauseCommand returns the `lockstep pause` command.
func PauseCommand(env *cli.Env) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "pause", GroupID: "operate",
		Short: "Let no standby take over by itself, until lockstep resume",
		Long: `While a pair is paused its standby does not take over, whatever it believes about the active: for work on the network or on a
machine that would only look like the death of a node. It is kept in the pair's record, so both nodes know, and it survives their
restarts. Replication goes on, an active that starts again keeps its role, and a switchover that is asked for is done.

If the active is lost meanwhile, no node serves until lockstep resume or until it is back.`,
		Example: `  lockstep pause --reason "the switch in rack 4 is replaced"`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return setPaused(cmd.Context(), env, true, reason) },
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for others who look at the status")
	return cmd
}

// ResumeCommand returns the `lockstep resume` command.
func ResumeCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "resume", GroupID: "operate",
		Short:   "Let the standby take over by itself again",
		Long:    "End what lockstep pause began. If the active is gone, the standby takes over now.",
		Example: "  lockstep resume",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return setPaused(cmd.Context(), env, false, "") },
	}
}

// setPaused calls the nodes one after the other, since the active may be unreachable.
func setPaused(ctx context.Context, env *cli.Env, paused bool, reason string) error {
	return env.WithTimeout(ctx, func(ctx context.Context, c *client.Client) error {
		addrs, err := env.Addresses()
		if err != nil {
			return err
		}
		for i, addr := range addrs {
			var n *client.Node
			if n, err = cli.NodeAt(c, addr); err != nil {
				return err
			}
			if _, err = n.SetPaused(ctx, paused, reason); err == nil || i == len(addrs)-1 {
				break
			}
		}
		if err != nil {
			return err
		}
		if err := env.Print.Object(map[string]any{"paused": paused, "reason": reason}); err != nil {
			return err
		}
		if paused {
			return env.Print.Sentence("the pair is paused: no standby takes over by itself until lockstep resume")
		}
		return env.Print.Sentence("the pair is not paused: a standby takes over when the active is gone")
	})
}
