// SPDX-License-Identifier: Apache-2.0

package demo_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/stretchr/testify/require"
)

// TestDemo runs a short demo with real processes.
func TestDemo(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	stdout, stderr, code := clitest.CLI{T: t}.Run("", "demo", "--duration", "3s", "--rate", "500", "--output", "json",
		"--seed", "7")
	require.Equal(t, cli.ExitOK, code, "%s%s", stdout, stderr)
	require.Equal(t, 1, strings.Count(stdout, "\n"), "one object: %s", stdout)
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout), &v))
	require.Len(t, v, 9)
	require.Positive(t, v["acknowledged"])
	require.InDelta(t, v["acknowledged"], v["delivered"], 0)
	require.InDelta(t, 0, v["lost"], 0)
	require.InDelta(t, 0, v["duplicated"], 0)
	require.InDelta(t, 0, v["out_of_order"], 0)
	require.Equal(t, true, v["digests_equal"])
	require.Equal(t, "etcd", v["coordinator"])
	require.Positive(t, v["failover_ms"])
	require.Contains(t, stderr, "SIGKILL")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "the temporary directory is removed")
}

// TestDemoTransaction runs a short transaction demo with real processes.
func TestDemoTransaction(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	stdout, stderr, code := clitest.CLI{T: t}.Run("", "demo", "transaction", "--kills", "2", "--output", "json")
	require.Equal(t, cli.ExitOK, code, "%s%s", stdout, stderr)
	require.Equal(t, 1, strings.Count(stdout, "\n"), "one object: %s", stdout)
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout), &v))
	require.Len(t, v, 12)
	require.Equal(t, true, v["passed"])
	require.InDelta(t, 2, v["kills"], 0)
	require.Positive(t, v["published"])
	require.InDelta(t, v["published"], v["stored"], 0)
	for _, none := range []string{"missing", "doubled", "left"} {
		require.InDelta(t, 0, v[none], 0, none)
	}
	require.GreaterOrEqual(t, v["processed"], v["published"])
	require.Positive(t, v["lost_workers"])
	require.Contains(t, stderr, "killed node")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "the temporary directory is removed")
}

// TestDemoResize runs a short resize demo with real processes.
func TestDemoResize(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	stdout, stderr, code := clitest.CLI{T: t}.Run("", "demo", "resize", "--fill", "8MiB", "--rate", "200", "--output",
		"json",
		"--seed", "3")
	require.Equal(t, cli.ExitOK, code, "%s%s", stdout, stderr)
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout), &v))
	require.Equal(t, true, v["passed"])
	require.Equal(t, "done", v["plan"])
	for _, none := range []string{
		"lost", "duplicated", "out_of_order", "stock_lost", "stock_duplicated",
		"fewer_than_two_copies_ms",
	} {
		require.InDelta(t, 0, v[none], 0, none)
	}
	require.Equal(t, []any{2048.0, 2048.0}, v["page_sizes_before"])
	require.Greater(t, v["page_size_recommended"], 2048.0)
	require.Equal(t, []any{v["page_size_recommended"], v["page_size_recommended"]}, v["page_sizes_after"])
	require.Positive(t, v["killed_at_percent"])
	require.Positive(t, v["kill_fewer_than_two_copies_ms"])
	require.Positive(t, v["pause_ms"])
	require.Contains(t, stderr, "████", "the histogram")
	require.Contains(t, stderr, "SIGKILL")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "the temporary directory is removed")
}

// The demo runs with the raft coordinator: the two nodes and a witness.
func TestDemoRaft(t *testing.T) {
	dir, err := os.MkdirTemp("", "lockstep-test-")
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kept: %s", dir)
			return
		}
		require.NoError(t, os.RemoveAll(dir))
	})
	t.Setenv("TMPDIR", dir)
	stdout, stderr, code := clitest.CLI{T: t}.Run("", "demo", "--coordinator", "raft", "--duration", "3s", "--rate",
		"300", "--output", "json", "--seed", "5")
	require.Equal(t, cli.ExitOK, code, "%s%s", stdout, stderr)
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout), &v))
	require.Equal(t, "raft", v["coordinator"])
	for _, none := range []string{"lost", "duplicated", "out_of_order"} {
		require.InDelta(t, 0, v[none], 0, none)
	}
	require.Equal(t, true, v["digests_equal"])
}
