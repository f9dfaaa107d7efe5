// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/cmd/internal/commands"
	"github.com/lockstep-mq/lockstep/test/harness"
	"github.com/stretchr/testify/require"
)

// TestMaintenance runs all maintenance commands on a pair.
func TestMaintenance(t *testing.T) {
	p, c := clitest.StartNodes(t, false)
	clitest.FillForScan(t, c, 2000)

	require.Equal(t, []map[string]any{{"state": "none"}}, c.Lines("store", "plan"))
	_, stderr, code := c.Run("", "store", "resize")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "store scan")
	text := c.OK("store", "scan")
	for _, want := range []string{
		"(standby): 2,000 messages", "4.0 KiB – 6.0 KiB", "████", "← recommended", "current",
		"lockstep store resize --rolling",
	} {
		require.Contains(t, text, want)
	}
	scan := c.Lines("store", "scan")[0]
	require.InDelta(t, 2048, scan["page_size"], 0)
	recommended, _ := scan["recommended"].(float64)
	require.Greater(t, recommended, 4000.0)
	require.NotEmpty(t, scan["histogram"])
	require.NotEmpty(t, scan["candidates"])
	last := c.OK("store", "scan", "--last")
	require.Contains(t, last, text, "everything is shown again")
	scans, _ := c.Lines("store", "scan", "--last", "--node", "standby")[0]["scans"].([]any)
	require.Equal(t, []any{scan}, scans)
	scans, _ = c.Lines("store", "scan", "--last", "--node", "active")[0]["scans"].([]any)
	require.Len(t, scans, 1)
	require.InDelta(t, 0, scans[0].(map[string]any)["page_size"], 0, "the active is not scanned yet")
	_, _, code = c.Run("", "store", "scan", "--last", "--full-speed")
	require.Equal(t, cli.ExitUsage, code)

	require.Contains(t, c.OK("store", "settings", "set", "page-size-max", "16KiB"), "16.0 KiB")
	require.Contains(t, c.OK("store", "settings", "get", "page-size-max"), "16.0 KiB")
	require.Contains(t, c.OK("store", "settings", "get"), "page-size-recommended")
	require.InDelta(t, 16384, c.Lines("store", "settings", "get")[0]["page-size-max"], 0)
	_, _, code = c.Run("", "store", "settings", "set", "backup.keep-generations", "0")
	require.Equal(t, cli.ExitError, code, "the node rejects it")

	dry := c.Lines("store", "resize", "--rolling", "--dry-run", "--page-size", "8KiB")
	require.Len(t, dry, 2)
	for _, one := range dry {
		rewritten(t, one, 2048, 8192)
		require.Equal(t, true, one["dry_run"])
		require.Equal(t, true, one["enough_space"])
		require.Positive(t, one["needed_bytes"])
	}
	before := clitest.ActiveAddress(t, c)
	stdout, stderr, code := c.Run("", "store", "resize", "--rolling", "--page-size", "8KiB", "--switch-back")
	require.Equal(t, cli.ExitOK, code, "%s%s", stdout, stderr)
	require.Contains(t, stderr, "a: done")
	require.Contains(t, stderr, "b: done")
	require.Equal(t, before, clitest.ActiveAddress(t, c), "the role was returned")
	plan := c.Lines("store", "plan")[0]
	require.Equal(t, "done", plan["state"])
	require.ElementsMatch(t, []any{"a", "b"}, plan["done_nodes"])
	status := c.Lines("status")[0]
	inStatus, _ := status["plan"].(map[string]any)
	require.Equal(t, "done", inStatus["state"])
	require.NotContains(t, c.OK("status"), "resize", "the plan has ended")
	require.Equal(t, "done", c.Lines("store", "plan", "--watch")[0]["state"])
	_, _, code = c.Run("", "store", "plan", "--cancel")
	require.Equal(t, cli.ExitError, code, "the plan has ended")
	for _, node := range []string{"a", "b"} {
		require.Contains(t, c.OK("store", "settings", "get", "page-size-current", "--node", node), "8.0 KiB")
		require.Contains(t, c.OK("store", "drop-old", "--node", node), "freed")
		require.InDelta(t, 0, c.Lines("store", "drop-old", "--node", node)[0]["bytes"], 0)
	}

	require.Contains(t, c.OK("store", "compact", "--node", "standby"), "page.db_old")
	compacted := c.Lines("store", "compact", "--node", "standby")[0]
	rewritten(t, compacted, 8192, 8192)
	require.Equal(t, true, compacted["enough_space"])
	_, stderr, code = c.Run("", "store", "compact", "--node", "active")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "role")
	require.Contains(t, c.OK("store", "shrink", "--node", p.Nodes[0].Address), "page.db")
	require.Contains(t, c.OK("store", "shrink", "--dry-run"), "page.db")
	_, stderr, code = c.Run("", "store", "scan", "--node", "c")
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, stderr, "a (")
	backups(t, c)
}

// rewritten checks the page sizes and the number of messages of a rewrite.
func rewritten(t *testing.T, r map[string]any, before, after float64) {
	t.Helper()
	require.InDelta(t, before, r["page_size_before"], 0)
	require.InDelta(t, after, r["page_size_after"], 0)
	require.InDelta(t, 2000, r["messages"], 0)
}

// backups creates backups, lists them, and restores one.
func backups(t *testing.T, c clitest.CLI) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "sets")
	_, stderr, code := c.Run("", "store", "backup", "--path", "relative")
	require.Equal(t, cli.ExitUsage, code, stderr)
	require.Contains(t, c.OK("store", "backup", "--path", dir), "-ps8192")
	require.Contains(t, c.OK("store", "settings", "set", "backup.path", dir), dir)
	require.Contains(t, c.OK("store", "backup", "--node", "active", "--rate", "500MiB"), dir)
	require.Len(t, c.Lines("store", "backups"), 2)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "20200101T000000Z-lsn000001-ps2048"), 0o750))
	require.Contains(t, c.OK("store", "backups", dir), "NOT USABLE")
	require.Contains(t, c.OK("store", "backups", dir, "--verify"), "verified")
	onNode := c.Lines("store", "backups", "--verify")
	require.Equal(t, true, onNode[0]["verified"])
	check, _ := onNode[0]["check"].(map[string]any)
	require.Equal(t, true, check["restorable"])
	require.InDelta(t, 2000, check["messages"], 0)
	require.Len(t, c.Lines("store", "backups", "--verify", "--set", onNode[1]["name"].(string)), 1)
	_, stderr, code = c.Run("", "store", "backups", "--verify", "--set", "none")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "not found")
	_, _, code = c.Run("", "store", "backups", "--set", "none")
	require.Equal(t, cli.ExitUsage, code)
	pageMapOf(t, c)

	data := filepath.Join(t.TempDir(), "data")
	dry := c.Lines("store", "restore", dir, "--data-dir", data, "--dry-run")[0]
	require.Equal(t, true, dry["dry_run"])
	set, _ := dry["set"].(map[string]any)
	require.InDelta(t, 2000, set["messages"], 0)
	require.InDelta(t, 8192, set["page_size"], 0)
	require.NoDirExists(t, data)
	restored := c.Lines("store", "restore", dir, "--data-dir", data)[0]
	require.NotEmpty(t, restored["store_id"])
	check = c.Lines("store", "check", data)[0]
	require.Equal(t, true, check["sound"])
	require.InDelta(t, 2000, check["messages"], 0)
	require.Contains(t, c.OK("store", "scan", "--data-dir", data), "2,000 messages")
	require.Contains(t, c.OK("store", "resize", "--data-dir", data, "--page-size", "4KiB", "--dry-run"),
		"8.0 KiB → 4.0 KiB")
	require.InDelta(t, 0, c.Lines("store", "drop-old", "--data-dir", data)[0]["bytes"], 0)
	_, stderr, code = c.Run("", "store", "restore", dir, "--data-dir", data)
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "empty")
	missing, other := filepath.Join(data, "missing"), filepath.Join(data, "other")
	for _, want := range []struct{ args, text string }{
		{filepath.Dir(data), "no complete backup in"},
		{missing, "directory not found: " + missing},
		{dir + " --archive " + missing, "directory not found: " + missing},
	} {
		args := append([]string{"store", "restore", "--data-dir", other}, strings.Fields(want.args)...)
		_, stderr, code = c.Run("", args...)
		require.Equal(t, cli.ExitError, code, stderr)
		require.Contains(t, stderr, want.text)
		require.NoDirExists(t, other)
	}
}

// The first Ctrl-C cancels the plan, and the command waits for the cancellation.
func TestInterruptCancelsPlan(t *testing.T) {
	settings := harness.SmallNodes()
	settings["maintenance.rewrite-rate"] = "64KiB" // takes minutes unless it is canceled
	_, c := clitest.StartNodesWith(t, false, settings)
	clitest.FillForScan(t, c, 2000)
	ctx, interrupt := context.WithTimeout(t.Context(), 60*time.Second)
	defer interrupt()
	var stdout strings.Builder
	stderr := &clitest.WatchedWriter{Want: "its page file", Seen: interrupt}
	code := commands.Run(ctx, []string{"store", "compact", "--rolling", "--output", "json"},
		c.Process(strings.NewReader(""), &stdout, stderr))
	var plan map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout.String()), &plan), "%s%s", stdout.String(), stderr.Text.String())
	require.Contains(t, stderr.Text.String(), "Ctrl-C again")
	require.Equal(t, cli.ExitError, code)
	require.Equal(t, "cancelled", plan["state"])
	require.Equal(t, "cancelled", c.Lines("store", "plan")[0]["state"])
	c.OK("store", "check")
}

// pageMapOf requests the map of the standby's page file.
func pageMapOf(t *testing.T, c clitest.CLI) {
	t.Helper()
	require.Regexp(t, `\n +1  [MIBCRmib.]+\n`, c.OK("store", "map"))
	m := c.Lines("store", "map", "--regions", "16")[0]
	require.InDelta(t, 8192, m["page_size"], 0)
	require.Contains(t, m["store"], "standby")
	regions, _ := m["regions"].([]any)
	require.LessOrEqual(t, len(regions), 16)
	total, _ := m["total"].(map[string]any)
	require.Greater(t, total["messages"], 500.0)
	_, stderr, code := c.Run("", "store", "map", "--regions", "5000")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "maximum is 4096")
}
