// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// KnownSubcommand refuses an argument of a group: it was meant to be one of its commands.
func KnownSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		text += "; did you mean " + strings.Join(names, " or ") + "?"
	}
	return Usage("%s", text)
}

// NeedsSubcommand is run by a group that was called by itself.
func NeedsSubcommand(cmd *cobra.Command, _ []string) error {
	return Usage("%s needs one of its commands; see `%s --help`", cmd.CommandPath(), cmd.CommandPath())
}
