// SPDX-License-Identifier: Apache-2.0

// Package pair has the commands that change the pair itself: its record, and the voters that hold it, with the third of
// them, the witness.
package pair

import (
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/spf13/cobra"
)

// Command groups what changes the pair itself.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "pair", GroupID: "operate",
		Short: "Look at and change the pair itself: its record, and the voters that hold it",
		Args:  cli.KnownSubcommand,
		RunE:  cli.NeedsSubcommand,
	}
	cmd.AddCommand(
		adoptCommand(env), votersCommand(env), addCommand(env), removeCommand(env), replaceCommand(env),
		recoverCommand(env),
	)
	return cmd
}
