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
func TestNodes(t *testing.T) {
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
	require.Equal(t, cli.ExitError, code, "the primary answers")
	require.NoError(t, east.Nodes[0].Kill())
	promoted := atWest.Lines("site", "promote", "--reason", "x", "--yes")[0]
	require.Equal(t, end, promoted["origin"])
	require.InDelta(t, done["epoch"].(float64)+1, promoted["epoch"], 0)
	require.Equal(t, "a\nb\nc\n", atWest.OK("consume", "q", "--count", "3"))
}
