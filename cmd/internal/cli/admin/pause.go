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
		Short: "Disable automatic failover",
		Long: `Pause a pair, for example during network maintenance: until lockstep resume, the standby does not take over
automatically, even if the active appears to be down. The pause survives restarts of both nodes.

If the active fails or stops during a pause, no node serves clients until the active returns, or the pair is resumed and
the standby takes over. lockstep switchover remains possible.`,
		Example: `  lockstep pause --reason "replacing the switch in rack 4"`,
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return setPaused(cmd.Context(), env, true, reason) },
	}
	cmd.Flags().StringVar(&reason, "reason", "", "reason, shown in the status, up to 200 bytes")
	return cmd
}

// ResumeCommand returns the `lockstep resume` command.
func ResumeCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "resume", GroupID: "operate",
		Short:   "Enable automatic failover after a pause",
		Long:    "End lockstep pause. If the active is down and the standby was in sync, the standby then takes over.",
		Example: "  lockstep resume",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return setPaused(cmd.Context(), env, false, "") },
	}
}

// setPaused calls one node after the other until one accepts the change, because the active may be unreachable.
func setPaused(ctx context.Context, env *cli.Env, paused bool, reason string) error {
	return env.WithPairTimeout(ctx, func(ctx context.Context, c *client.Client) error {
		nodes, err := env.Nodes(c)
		for _, n := range nodes {
			if _, err = n.SetPaused(ctx, paused, reason); err == nil {
				break
			}
		}
		if err != nil {
			return err
		}
		text := "automatic failover is enabled while the standby is in sync"
		if paused {
			text = "automatic failover is disabled until lockstep resume"
		}
		return env.Print.Result(map[string]any{"paused": paused, "reason": reason}, "%s", text)
	})
}
