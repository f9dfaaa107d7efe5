// SPDX-License-Identifier: Apache-2.0

package storetool_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/stretchr/testify/require"
)

// Commands that read the files of a stopped node accept the directory as --data-dir and as an argument.
func TestDataDir(t *testing.T) {
	p, c := clitest.StartNodes(t, true)
	c.OK("publish", "q", "x", "--create")
	dir := filepath.Join(p.Nodes[0].Dir, "data")
	require.NoError(t, p.Close())
	for _, args := range [][]string{{"check"}, {"digest"}, {"dump-meta"}, {"dump-log"}} {
		given := c.OK(append([]string{"store"}, append(args, "--data-dir", dir)...)...)
		require.Equal(t, given, c.OK("store", args[0], dir), args)
		_, _, code := c.Run("", "store", args[0], dir, "--data-dir", dir)
		require.Equal(t, cli.ExitUsage, code, args)
	}
	for _, args := range [][]string{
		{"dump-meta"},
		{"dump-log"},
		{"dump-page", "1"},
		{"dump-page", "--data-dir", dir},
		{"check", dir, dir},
	} {
		_, stderr, code := c.Run("", append([]string{"store"}, args...)...)
		require.Equal(t, cli.ExitUsage, code, args)
		require.Contains(t, stderr, "--help", args)
	}
	for _, cmd := range []string{"check", "digest", "dump-meta", "scan"} {
		_, stderr, code := c.Run("", "store", cmd, "--data-dir", dir+"-none")
		require.Equal(t, cli.ExitError, code, cmd)
		require.Contains(t, stderr, dir+"-none", cmd)
		require.Contains(t, stderr, "lockstep doctor", cmd, "the hint for datadir.ErrNone")
	}
	require.Equal(t, cli.ExitOK, func() int {
		_, _,
			code := c.Run("", "store", "dump-page", "1", "--data-dir", dir)
		return code
	}())
}

// For a corrupt store, check recommends a copy from the other node only if that node is in sync.
func TestCheckCorruptStore(t *testing.T) {
	p, c := clitest.StartNodes(t, true)
	body := strings.Repeat("0123456789abcdef", 1<<10)
	c.OK("publish", "q", body, "--create")
	dir := filepath.Join(p.Nodes[0].Dir, "data")
	require.NoError(t, p.Close())
	pages := filepath.Join(dir, datadir.PageFileName)
	raw, err := os.ReadFile(pages)
	require.NoError(t, err)
	require.Contains(t, string(raw), body[:1<<10])
	corrupt := bytes.ReplaceAll(raw, []byte("0123456789abcdef"), []byte("0123456789abcdeg"))
	require.NoError(t, os.WriteFile(pages, corrupt, 0o600))
	_, stderr, code := c.Run("", "store", "check", "--data-dir", dir)
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "lockstep status")
	require.Contains(t, stderr, "store restore")
}
