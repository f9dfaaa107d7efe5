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
		Short: "Restart both nodes without downtime",
		Long: `Restart the nodes of a pair, one at a time, without downtime: the standby restarts and catches up, the
active role is switched, and the other node restarts. Producers and consumers only notice the pause of a switchover;
with min-in-sync 2, writes also wait while a node restarts. Ctrl-C cancels the restart at the next safe point.

For an upgrade, first replace the program on both machines (write the new file next to the old one and rename it).
A node replaces its own process, so its supervisor is not involved. Settings are read again.

Before a node stops, the new program checks its settings and files (lockstep serve --check). If the check fails,
the node keeps running and the plan fails with the reason.

The pair stores the restart as a plan, as for lockstep store resize --rolling, and continues it after process
failures. To show or cancel it, use lockstep store plan. If the new version does not start, the plan waits, the
other node serves clients with the old version, and no messages are lost: restore the old program and start the
node manually.`,
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
	cmd.Flags().BoolVar(&switchBack, "switch-back", false, "switch the active role back at the end")
	cmd.Flags().BoolVar(&detach, "detach", false, "start the plan and return immediately")
	return cmd
}
