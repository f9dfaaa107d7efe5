// SPDX-License-Identifier: Apache-2.0

//go:build deep || measure

package ratios

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The program accepts all commands and their flags. The commands are not executed.
func TestRunCommandsAreValid(t *testing.T) {
	binary := program(t)
	for _, r := range expected(t).Runs {
		out, err := exec.CommandContext(t.Context(), binary, helpOf(r)...).CombinedOutput()
		require.NoError(t, err, "%s: %s", r.Name, out)
		require.Contains(t, string(out), "lockstep-lab "+strings.Fields(r.Command)[0])
	}
	out, err := exec.CommandContext(t.Context(), binary, helpOf(run{Command: "publish --nonsense"})...).CombinedOutput()
	require.Error(t, err, "%s", out)
}

// helpOf returns the arguments of a command followed by the help flag. The program rejects invalid flags before it
// prints the help.
func helpOf(r run) []string {
	return slices.Concat(strings.Fields(r.Command), []string{"--output", "json", "--help"})
}

// program returns the path of the measured program.
func program(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("LOCKSTEP_BINARY"); path != "" {
		path, err := filepath.Abs(path)
		require.NoError(t, err)
		return path
	}
	path := filepath.Join(t.TempDir(), "lockstep")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path,
		"github.com/lockstep-mq/lockstep/cmd/lockstep-lab").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}
