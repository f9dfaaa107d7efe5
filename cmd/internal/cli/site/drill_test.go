// SPDX-License-Identifier: Apache-2.0

package site_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/cmd/internal/commands"
)

// lockstep site drill copies a running node, and serves the copy until it is interrupted. An existing directory is
// rejected.
func TestDrill(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("publish", "orders", "one", "two", "--create")
	dir := filepath.Join(t.TempDir(), "copy")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	served := make(chan struct{}, 1)
	stdout := &clitest.WatchedWriter{Want: "is served at", Seen: func() { served <- struct{}{} }}
	ended := make(chan int, 1)
	args := []string{"site", "drill", "--data-dir", dir, "--listen", "127.0.0.1:0"}
	go func() { ended <- commands.Run(ctx, args, c.Process(strings.NewReader(""), stdout, io.Discard)) }()
	select {
	case <-served:
	case code := <-ended:
		require.FailNow(t, "not served", "exit code %d, %s", code, stdout.Text.String())
	}
	_, rest, _ := strings.Cut(stdout.Text.String(), "is served at ")
	address, _, _ := strings.Cut(rest, " ")
	_, _, err := net.SplitHostPort(address)
	require.NoError(t, err)
	copied := clitest.CLI{T: t, Addr: address}
	copied.OK("publish", "orders", "three")
	require.Len(t, copied.Lines("browse", "orders"), 3)
	require.Len(t, c.Lines("browse", "orders"), 2)
	cancel()
	require.Equal(t, cli.ExitOK, <-ended)

	_, stderr, code := c.Run("", "site", "drill", "--data-dir", dir)
	require.Equal(t, cli.ExitError, code, stderr)
	v := c.Lines("site", "drill", "--data-dir", dir+"2")
	require.Len(t, v, 1)
	require.Equal(t, "none", v[0]["role"])
	require.InDelta(t, 2, v[0]["messages"], 0)
	require.NotEmpty(t, v[0]["lineage"])
	require.Contains(t, v[0]["serve"], dir+"2")
}

func TestDrillUsage(t *testing.T) {
	s := startSites(t)
	dir := filepath.Join(t.TempDir(), "copy")
	for _, args := range [][]string{
		{}, {"--data-dir", dir, "--listen", "0.0.0.0:7600"}, {"--data-dir", dir, "--listen", "7600"},
	} {
		_, _, code := s.west.cli(t).Run("", append([]string{"site", "drill"}, args...)...)
		require.Equal(t, cli.ExitUsage, code, args)
	}
	_, err := os.Stat(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
}
