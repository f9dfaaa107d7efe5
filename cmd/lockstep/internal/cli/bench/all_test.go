// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"strings"
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/cli"
	"github.com/stretchr/testify/require"
)

// The command lines of all parts of `bench all` are valid.
func TestParts(t *testing.T) {
	env := &cli.Env{Process: cli.Process{Lookup: func(string) (string, bool) { return "", false }}}
	for _, p := range parts() {
		for _, line := range []string{p.short, p.long} {
			cmd, args, err := Command(env).Find(strings.Fields(line))
			require.NoError(t, err, line)
			require.NotEqual(t, "bench", cmd.Name(), line)
			require.NoError(t, cmd.ParseFlags(args), line)
		}
	}
}
