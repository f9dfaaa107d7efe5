// SPDX-License-Identifier: Apache-2.0

package site_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// The commands work with real nodes: a replica receives the messages of its primary, and has them after its promotion.
func TestSiteCommandsWithNodes(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("a-secret-shared-by-both-sites\n"), 0o600))
	named := func(name string) map[string]string {
		settings := maps.Clone(harness.SmallNodes())
		settings["site.name"], settings["site.token-file"] = name, token
		return settings
	}
	east, atEast := clitest.StartNodesWith(t, true, named("east"))
	settings := named("west")
	settings["site.remote"] = atEast.Addr
	_, atWest := clitest.StartNodesWith(t, true, settings)

	done := atWest.Lines("site", "demote", "--replica-of", atEast.Addr, "--yes")[0]
	require.Equal(t, true, done["done"])
	require.Equal(t, "east", done["primary"])
	atEast.OK("queue", "create", "q")
	atEast.OK("publish", "q", "a", "b", "c")
	end := atEast.Lines("site", "status")[0]["site"].(map[string]any)["applied"]
	require.Eventually(t, func() bool {
		v, code := siteStatus(t, atWest)
		return code == cli.ExitOK && v["site"].(map[string]any)["role"] == "replica" &&
			v["replication"].(map[string]any)["lag_records"] == 0.0 &&
			v["site"].(map[string]any)["upstream"].(map[string]any)["lsn"] == end.(map[string]any)["lsn"]
	}, time.Minute, 10*time.Millisecond)

	_, _, code := atWest.Run("", "site", "promote", "--reason", "x", "--yes")
	require.Equal(t, cli.ExitError, code, "the primary responds")
	require.NoError(t, east.Nodes[0].Kill())
	promoted := atWest.Lines("site", "promote", "--reason", "x", "--yes")[0]
	require.Equal(t, end, promoted["origin"])
	require.InDelta(t, done["epoch"].(float64)+1, promoted["epoch"], 0)
	require.Equal(t, "a\nb\nc\n", atWest.OK("consume", "q", "--count", "3"))
}

// seed creates a data directory from a running node. A directory with files is rejected.
func TestSeed(t *testing.T) {
	dir := t.TempDir()
	token, file, data := filepath.Join(dir, "token"), filepath.Join(dir, "node.yaml"), filepath.Join(dir, "data")
	require.NoError(t, os.WriteFile(token, []byte("a-secret-shared-by-both-sites\n"), 0o600))
	settings := maps.Clone(harness.SmallNodes())
	settings["site.name"], settings["site.token-file"] = "east", token
	_, c := clitest.StartNodesWith(t, true, settings)
	c.OK("queue", "create", "q")
	c.OK("publish", "q", "a", "b", "c")
	yaml := "site:\n  name: west\n  token-file: " + token + "\n  remote: [" + c.Addr + "]\n"
	require.NoError(t, os.WriteFile(file, []byte(yaml), 0o600))

	_, _, code := c.Run("", "site", "seed", "--site-name", "west", "--data-dir", data)
	require.Equal(t, cli.ExitUsage, code, "no primary")
	_, _, code = c.Run("", "site", "seed", "--from", c.Addr, "--data-dir", data)
	require.Equal(t, cli.ExitUsage, code, "no name")
	_, _, code = c.Run("", "site", "seed", "--site-name", "east", "--from", c.Addr, "--data-dir", data)
	require.Equal(t, cli.ExitError, code, "the name of the primary")
	require.NoDirExists(t, data)

	seeded := c.Lines("site", "seed", "--config", file, "--data-dir", data)[0]
	require.Equal(t, "east", seeded["primary"])
	require.InDelta(t, 3, seeded["messages"], 0)
	require.InDelta(t, 1, seeded["epoch"], 0)
	state := c.Lines("site", "status")[0]["site"].(map[string]any)
	require.Equal(t, state["lineage"], seeded["lineage"])
	require.Contains(t, c.OK("store", "check", data), "3 messages")
	require.Contains(t, c.OK("store", "dump-log", "--data-dir", data), "follow")
	_, stderr, code := c.Run("", "site", "seed", "--config", file, "--data-dir", data)
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "empty")
}
