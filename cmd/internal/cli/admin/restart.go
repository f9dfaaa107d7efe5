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
		Short: "Restart both nodes of a pair, one after the other, while it serves: for an upgrade or new settings",
		Long: `Restart the nodes of a pair, one after the other, without a moment in which no node serves: the standby restarts and is in
sync again, the roles are switched, and the other node restarts. Producers and consumers see the pause of a switchover.

For an upgrade, put the new program in the place of the old one on both machines first (write it beside the old one and
rename it), then run this. A node replaces its own process: its supervisor notices nothing. Settings are read again.

Before a node stops, the program on its disk checks the settings and files that it would start with (lockstep serve
--check). If it would not start, nothing is stopped, and the plan fails with the reason.

The pair keeps this as a plan, as it does with lockstep store resize --rolling, and goes on with it whatever is killed:
lockstep store plan shows it, and cancels it. If the new version does not start, the plan waits, the other node serves on
with the old one, and nothing is lost: put the old program back and start the node by hand.`,
		Example: `  lockstep restart
  lockstep restart --switch-back
  lockstep restart --detach --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return plan.Run(ctx, env, c, &pb.StartPlanRequest{
					Kind:       pb.PlanKind_PLAN_KIND_RESTART,
					SwitchBack: switchBack,
				}, detach)
			})
		},
	}
	cmd.Flags().BoolVar(&switchBack, "switch-back", false, "give the active role back at the end")
	cmd.Flags().BoolVar(&detach, "detach", false, "start it and do not watch it")
	return cmd
}
