// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"strings"
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/stretchr/testify/require"
)

// The command lines of `lockstep-lab all` are valid.
func TestParts(t *testing.T) {
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
