// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

func TestCommandLinesOfAllAreValid(t *testing.T) {
	env := &cli.Env{Process: cli.Process{Lookup: func(string) (string, bool) { return "", false }}}
	for _, p := range parts() {
		for _, line := range []string{p.short, p.long} {
			cmd, args, err := Root(env).Find(strings.Fields(line))
			require.NoError(t, err, line)
			require.NotEqual(t, "lockstep-lab", cmd.Name(), line)
			require.NoError(t, cmd.ParseFlags(args), line)
		}
	}
}

// The help of each command fits a terminal of 80 columns, except flags and examples.
func TestHelpFits(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Long) {
			require.LessOrEqual(t, utf8.RuneCountInString(line), 81, "%s: %s", cmd.CommandPath(), line)
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(Root(&cli.Env{Process: cli.Process{Lookup: func(string) (string, bool) { return "", false }}}))
}
