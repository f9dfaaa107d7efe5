// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/commands"
)

// Each command listed by --help has a page, and the output is identical on every machine.
func TestManual(t *testing.T) {
	first, second := t.TempDir(), t.TempDir()
	require.NoError(t, run([]string{first, "v1.2.3"}, "1767225600"))
	t.Setenv("LOCKSTEP_ADDR", "elsewhere:1")
	t.Setenv("HOME", second)
	t.Setenv("TMPDIR", second)
	require.NoError(t, run([]string{second, "v1.2.3"}, "1767225600"))
	require.Equal(t, read(t, first), read(t, second))

	files := read(t, first)
	var check func(*cobra.Command)
	check = func(c *cobra.Command) {
		page := "man1/" + strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
		require.Contains(t, files, page)
		require.Contains(t, files[page], "lockstep v1.2.3")
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				check(sub)
			}
		}
	}
	check(commands.Root(&cli.Env{Process: cli.Process{Lookup: func(string) (string, bool) { return "", false }}}))

	require.Contains(t, files["man1/lockstep-serve.1"], "coordinator.etcd.prefix")
	require.Contains(t, files["lockstep.bash"], "complete -o default")
	require.Contains(t, files["_lockstep"], "#compdef lockstep")
	require.Contains(t, files["lockstep.fish"], "complete -c lockstep")
}

func TestInvalidArguments(t *testing.T) {
	usage := run([]string{t.TempDir()}, "0")
	require.Error(t, usage)
	require.Contains(t, usage.Error(), "DIR VERSION")
	date := run([]string{t.TempDir(), "v1"}, "")
	require.ErrorIs(t, date, strconv.ErrSyntax)
	require.Contains(t, date.Error(), "SOURCE_DATE_EPOCH")
	require.ErrorIs(t, run([]string{"/dev/null/x", "v1"}, "0"), syscall.ENOTDIR)
}

// read returns the files below dir by their relative paths.
func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := make(map[string]string)
	require.NoError(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		files[strings.TrimPrefix(path, dir+"/")] = string(data)
		return err
	}))
	return files
}
