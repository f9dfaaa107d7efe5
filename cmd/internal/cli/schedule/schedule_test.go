// SPDX-License-Identifier: Apache-2.0

package schedule_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// Schedules are put, shown, run, paused and deleted.
func TestSchedules(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "jobs")
	require.Empty(t, c.Lines("schedule", "list"))
	file := filepath.Join(t.TempDir(), "job.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"job":1}`), 0o600))
	put := c.Lines("schedule", "put", "nightly", "--cron", "0 2 * * *", "--tz", "Europe/Berlin", "--queue", "jobs",
		"--body", "@"+file, "--content-type", "application/json", "--property", "k=v", "--priority", "7",
		"--typed-property", "n=3", "--missed", "all")[0]
	require.NotEmpty(t, put["next_at"])
	require.Equal(t, true, c.Lines("schedule", "put", "poll", "--every", "24h", "--queue", "jobs", "--body", "x",
		"--paused")[0]["paused"])
	_, _, code := c.Run("", "schedule", "put", "broken", "--cron", "sometimes", "--queue", "jobs")
	require.Equal(t, cli.ExitError, code)
	for _, args := range [][]string{
		{"--cron", "@daily"},
		{"--queue", "q"},
		{"--queue", "q", "--cron", "@daily", "--every", "5s"},
		{"--queue", "q", "--every", "5s", "--tz", "UTC"},
		{"--queue", "q", "--cron", "@daily", "--missed", "never"},
		{"--queue", "q", "--cron", "@daily", "--priority", "11"},
	} {
		_, stderr, code := c.Run("", append([]string{"schedule", "put", "s"}, args...)...)
		require.Equal(t, cli.ExitUsage, code, "%v: %s", args, stderr)
	}

	require.InDelta(t, 1, c.Lines("schedule", "run", "nightly")[0]["sequence"], 0)
	published := c.Lines("browse", "jobs")[0]
	require.Equal(t, `{"job":1}`, published["body"])
	require.Equal(t, map[string]any{"k": "v"}, published["properties"])
	require.InDelta(t, 7, published["priority"], 0)
	shown := c.Lines("schedule", "show", "nightly")[0]
	require.Equal(t, "all", shown["missed"])
	require.Len(t, shown["history"], 1)
	require.NotEmpty(t, c.OK("schedule", "show", "nightly"))
	require.Len(t, c.Lines("schedule", "list"), 2)
	require.Len(t, c.Lines("schedule", "list", "p"), 1)
	require.NotEmpty(t, c.OK("schedule", "list"))
	require.NotEmpty(t, c.Lines("schedule", "resume", "poll")[0]["next_at"])
	require.Equal(t, true, c.Lines("schedule", "pause", "poll")[0]["paused"])
	c.OK("schedule", "delete", "poll")
	c.OK("subscription", "delete", "jobs", "default", "--yes")
	out, warning, code := c.Run("", "schedule", "run", "nightly")
	require.Equal(t, cli.ExitOK, code)
	require.NotContains(t, out, "published")
	require.Contains(t, warning, "subscription create")
	for _, command := range []string{"show", "run", "pause", "delete"} {
		_, _, code = c.Run("", "schedule", command, "poll")
		require.Equal(t, cli.ExitError, code)
	}
}
