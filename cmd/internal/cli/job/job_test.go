// SPDX-License-Identifier: Apache-2.0

package job_test

import (
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/stretchr/testify/require"
)

// Jobs are created and run, and their runs are recorded.
func TestJobs(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	clitest.FillForScan(t, c, 10)
	require.Contains(t, c.OK("job", "list"), "no jobs")
	require.NotEmpty(t, c.Lines("job", "put", "nightly", "--kind", "scan", "--schedule", "0 2 * * *")[0]["next_run"])
	require.Contains(t, c.OK("job", "put", "tidy", "--kind", "shrink", "--schedule", "@daily", "--paused"), "paused")
	_, stderr, code := c.Run("", "job", "put", "broken", "--kind", "scan", "--schedule", "sometimes")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "sometimes")
	require.Empty(t, c.Lines("job", "history", "nightly"))
	require.Equal(t, "ok", c.Lines("job", "run", "nightly")[0]["outcome"])
	runs := c.Lines("job", "history", "nightly")
	require.Len(t, runs, 1)
	require.Equal(t, "ok", runs[0]["outcome"])
	require.Contains(t, c.OK("job", "history", "nightly"), "ok")
	require.Len(t, c.Lines("job", "list"), 2)
	require.Contains(t, c.OK("job", "list"), "0 2 * * *")
	c.OK("job", "put", "compare", "--kind", "verify", "--schedule", "@daily")
	stdout, _, code := c.Run("", "job", "run", "compare")
	require.Equal(t, cli.ExitError, code, "it requires two nodes")
	require.Contains(t, stdout, "skipped")
	c.OK("job", "delete", "tidy")
	_, stderr, code = c.Run("", "job", "run", "tidy")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "job tidy")
	_, _, code = c.Run("", "job", "history", "tidy")
	require.Equal(t, cli.ExitError, code)
}
