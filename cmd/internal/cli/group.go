// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// KnownSubcommand rejects an argument of a group, since it can only be an unknown command.
func KnownSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		text += "; did you mean " + strings.Join(names, " or ") + "?"
	} else {
		text += "; available commands: " + strings.Join(subcommands(cmd), ", ")
	}
	return Usage("%s", text)
}

// NeedsSubcommand is run by a group without a command.
func NeedsSubcommand(cmd *cobra.Command, _ []string) error {
	return Usage("%s requires a command: %s", cmd.CommandPath(), strings.Join(subcommands(cmd), ", "))
}

func subcommands(cmd *cobra.Command) (names []string) {
	for _, below := range cmd.Commands() {
		if below.IsAvailableCommand() {
			names = append(names, below.Name())
		}
	}
	return names
}
