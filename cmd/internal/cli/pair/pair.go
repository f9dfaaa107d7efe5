// SPDX-License-Identifier: Apache-2.0

// Package pair implements the commands for the pair itself: its cluster record, the voters that store it, and the
// witness as the third voter.
package pair

import (
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/spf13/cobra"
)

// Command returns the `lockstep pair` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "pair", GroupID: "operate",
		Short: "Manage the cluster record and raft voters",
		Args:  cli.KnownSubcommand,
		RunE:  cli.NeedsSubcommand,
	}
	cmd.AddCommand(
		rebuildCommand(env), votersCommand(env), addCommand(env), removeCommand(env), replaceCommand(env),
		recoverCommand(env),
	)
	return cmd
}
