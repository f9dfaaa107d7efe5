// SPDX-License-Identifier: Apache-2.0

// Package fleet implements the commands for a fleet: pairs with a common directory of their queues.
package fleet

import (
	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

// Command returns the `lockstep fleet` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "fleet", GroupID: "operate",
		Short: "Show and change a fleet of pairs",
		Long: `Show and change a fleet: pairs that have the setting fleet.pair, and share a directory of their queues in
etcd.

The nodes in --addr can belong to any pair of the fleet. There are three exceptions: lockstep fleet leave removes the
pair in --addr, lockstep fleet forget requires nodes of other pairs, and lockstep fleet rebuild requires a node of
each pair if the directory is lost.

The commands require the operate right. drain --move and rebalance move only queues on which the caller has a right.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(statusCommand(env), pairsCommand(env), queuesCommand(env), placeCommand(env), drainCommand(env),
		undrainCommand(env), moveCommand(env), movesCommand(env), rebuildCommand(env), leaveCommand(env))
	cmd.AddCommand(rebalanceCommand(env), upgradeCommand(env), forgetCommand(env))
	return cmd
}
