package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDemo: a short one, with everything real.
func TestDemo(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	stdout, stderr, code := cli{t: t}.run("", "demo", "--duration", "4s", "--rate", "1000", "--output", "json", "--seed", "7")
	require.Equal(t, exitOK, code, "%s%s", stdout, stderr)
	require.Equal(t, 1, strings.Count(stdout, "\n"), "one object: %s", stdout)
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout), &v))
	require.Len(t, v, 8)
	require.Greater(t, v["acknowledged"], 3000.0)
	require.InDelta(t, v["acknowledged"], v["delivered"], 0)
	require.InDelta(t, 0, v["lost"], 0)
	require.InDelta(t, 0, v["duplicated"], 0)
	require.Equal(t, true, v["digests_equal"])
	require.Equal(t, "etcd", v["coordinator"])
	require.Positive(t, v["failover_ms"])
	require.Contains(t, stderr, "SIGKILL")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "the temporary directory is removed")
}
