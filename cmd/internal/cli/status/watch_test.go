// SPDX-License-Identifier: Apache-2.0

package status_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/cmd/internal/commands"
	"github.com/stretchr/testify/require"
)

// On a terminal the status is redrawn in place, with rates.
func TestWatchRedraws(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "q")
	ctx, stop := context.WithTimeout(t.Context(), 60*time.Second)
	defer stop()
	screen := &clitest.WatchedWriter{Want: " transactions, ", Seen: stop}
	p := c.Process(strings.NewReader(""), screen, screen)
	p.Terminal = func() bool { return true }
	code := commands.Run(ctx, []string{"status", "--watch", "--interval", "20ms"}, p)
	require.Equal(t, cli.ExitOK, code)
	require.GreaterOrEqual(t, strings.Count(screen.Text.String(), "\x1b[H\x1b[2J"), 2)
}

// A command that is interrupted by Ctrl-C reports the interruption, and no internal error.
func TestInterrupted(t *testing.T) {
	c := clitest.CLI{T: t, Addr: "127.0.0.1:1"}
	ctx, stop := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, stop)
	var stderr strings.Builder
	code := commands.Run(ctx, []string{"queue", "list", "--timeout", "30s"},
		c.Process(strings.NewReader(""), &stderr, &stderr))
	require.Equal(t, cli.ExitError, code)
	require.Equal(t, "lockstep: interrupted\n", stderr.String())
}
