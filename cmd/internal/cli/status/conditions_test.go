// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/commands"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

// Each command and flag that is named in the action of a condition exists.
func TestConditionsNameCommands(t *testing.T) {
	root := commands.Root(&cli.Env{Process: cli.Process{
		Stdout: io.Discard, Stderr: io.Discard,
		Lookup: func(string) (string, bool) { return "", false },
	}})
	named := regexp.MustCompile("`lockstep ([^`]*)`")
	found := 0
	for _, d := range conditions.All() {
		for _, m := range named.FindAllStringSubmatch(d.Cause+d.Action, -1) {
			found++
			words := strings.Fields(m[1])
			cmd, rest, err := root.Find(words)
			require.NoError(t, err, "%s: %s", d.Kind, m[0])
			require.NotSame(t, root, cmd, "%s: %s", d.Kind, m[0])
			for _, w := range rest {
				flag, ok := strings.CutPrefix(w, "--")
				if !ok && cmd.Runnable() && cmd.Args(cmd, rest) == nil {
					continue // an argument
				}
				require.True(t, ok, "%s: %s: %s is not a command", d.Kind, m[0], w)
				require.NotNil(t, cmd.Flags().Lookup(flag), "%s: %s has no flag --%s", d.Kind, cmd.CommandPath(), flag)
			}
		}
	}
	require.Greater(t, found, 10)
}
