package main

import "github.com/spf13/cobra"

// pairCommand groups what changes the pair itself.
func (a *app) pairCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pair", GroupID: "operate",
		Short: "Look at and change the pair itself: its record, and the voters that hold it",
		Args:  knownSubcommand,
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(
		a.pairAdoptCommand(), a.pairVotersCommand(), a.pairAddCommand(), a.pairRemoveCommand(), a.pairReplaceCommand(),
		a.pairRecoverCommand(),
	)
	return cmd
}
