package main

import "github.com/spf13/cobra"

// pairCommand groups what changes the pair itself.
func (a *app) pairCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pair", GroupID: "operate",
		Short: "Change the pair itself",
	}
	cmd.AddCommand(a.pairAdoptCommand())
	return cmd
}
