// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/plan"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// RestartCommand returns the `lockstep restart` command.
func RestartCommand(env *cli.Env) *cobra.Command {
	var switchBack, detach bool
	cmd := &cobra.Command{
		Use: "restart", GroupID: "operate",
		Short: "Restart both nodes, one at a time",
		Long: `Restart the nodes of a pair, one at a time: the standby restarts and catches up, the active role is switched,
and the other node restarts. Clients are paused during the switchover. With min-in-sync 2, writes are refused while a
node restarts. Ctrl-C cancels the restart at the next safe point. To show or cancel a restart, use lockstep store plan.

The nodes read their configuration files again, and keep their flags and environment variables. For an upgrade, first
replace the program on both machines: write the new file next to the old one and rename it. A node does not stop if
lockstep serve --check fails with the new program.

If a node does not start again, the other node serves clients. Start the node manually, if necessary with the old
program: the restart then continues.`,
		Example: `  lockstep restart
  lockstep restart --switch-back
  lockstep restart --detach --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithPair(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return plan.Run(ctx, env, c, &pb.StartPlanRequest{
					Kind:       pb.PlanKind_PLAN_KIND_RESTART,
					SwitchBack: switchBack,
				}, detach)
			})
		},
	}
	cmd.Flags().BoolVar(&switchBack, "switch-back", false, "switch the active role back to the first active at the end")
	cmd.Flags().BoolVar(&detach, "detach", false, "start the restart and return immediately")
	return cmd
}
