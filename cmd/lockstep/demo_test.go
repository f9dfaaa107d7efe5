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
	stdout, stderr, code := cli{t: t}.run("", "demo", "--duration", "4s", "--rate", "1000", "--output", "json",
		"--seed", "7")
	require.Equal(t, exitOK, code, "%s%s", stdout, stderr)
	require.Equal(t, 1, strings.Count(stdout, "\n"), "one object: %s", stdout)
	var v map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout), &v))
	require.Len(t, v, 9)
	require.Greater(t, v["acknowledged"], 3000.0)
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

// TestDemoResize: a short one, with everything real.
func TestDemoResize(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	stdout, stderr, code := cli{t: t}.run("", "demo", "resize", "--fill", "32MiB", "--rate", "500", "--output", "json",
		"--seed", "3")
	require.Equal(t, exitOK, code, "%s%s", stdout, stderr)
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
	require.Greater(t, v["killed_at_percent"], 10.0)
	require.Positive(t, v["kill_fewer_than_two_copies_ms"])
	require.Positive(t, v["pause_ms"])
	require.Contains(t, stderr, "████", "the histogram")
	require.Contains(t, stderr, "SIGKILL")
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "the temporary directory is removed")
}

// TestBench: each measurement, as short as can be.
func TestBench(t *testing.T) {
	c := cli{t: t}
	for _, args := range [][]string{
		{"publish", "--standalone", "--messages", "50"},
		{
			"publish", "--pair", "--messages", "500", "--window", "100", "--producers", "2", "--queues", "2", "--sync",
			"off",
		},
		{"consume", "--standalone", "--messages", "500", "--consumers", "2"},
		{"store", "--messages", "500", "--bursts", "1"},
	} {
		lines := c.lines(append([]string{"bench", args[0], "--rounds", "2"}, args[1:]...)...)
		require.GreaterOrEqual(t, len(lines), 3)
		for _, l := range lines {
			for _, field := range []string{
				"workload", "phase", "size_bytes", "messages", "rate_per_s", "mb_per_s", "p50_ms", "p99_ms", "p999_ms",
				"max_ms", "cpu_s", "rss_mb", "disk_written_mb",
			} {
				require.Contains(t, l, field)
			}
			require.Positive(t, l["rate_per_s"])
		}
		require.Equal(t, true, lines[len(lines)-1]["median"])
	}
	for _, setup := range []string{"--pair", "--standalone"} {
		_, stderr, _ := c.run("", "bench", "pagesize", "--size", "4200", "--queues", "0")
		require.Contains(t, stderr, "must be at least 1", "a size that is given takes the place of the default")
		lines := c.lines("bench", "pagesize", "--mix", "400x4200,100x512", "--queues", "2", "--senders", "2", "--sync",
			"off", setup)
		require.Len(t, lines, 7)
		require.Equal(t, "rewrite", lines[3]["phase"])
		require.InDelta(t, 2048, lines[2]["page_size"], 0)
		require.Greater(t, lines[3]["page_size"], 2048.0)
		require.Positive(t, lines[3]["cp_mb_per_s"])
		require.Positive(t, lines[3]["mb_per_s"])
		require.Positive(t, lines[6]["file_mb"])
		require.InDelta(t, 500, lines[4]["messages"], 0)
	}
	lines := c.lines("bench", "queues", "--queues", "200", "--messages", "500", "--size", "100", "--rounds", "1")
	require.Len(t, lines, 5)
	require.Positive(t, lines[4]["start_ms"])
	lines = c.lines("bench", "queues", "--standalone", "--queues", "70", "--messages", "200", "--rounds", "1")
	require.Len(t, lines, 10)
	require.Equal(t, "round robin", lines[3]["phase"])
	require.Positive(t, lines[4]["start_ms"])
	lines = c.lines("bench", "growth", "--levels", "10,1000", "--messages", "100", "--acks", "50", "--rounds", "2")
	require.Len(t, lines, 2*4+4)
	require.InDelta(t, 1000, lines[len(lines)-3]["stored"], 0)
	lines = c.lines("bench", "store", "--messages", "200", "--bursts", "4", "--rounds", "1", "--far", "--sync", "off")
	require.Len(t, lines, 2*4+2+2+4)
	lines = c.lines("bench", "knobs", "--knob", "checkpoint-bytes", "--values", "1MiB,64MiB", "--duration", "300ms",
		"--standalone")
	require.Len(t, lines, 4)
	require.Equal(t, "64MiB", lines[3]["value"])
	require.Positive(t, lines[3]["log_mb"])
	lines = c.lines("bench", "publish", "--standalone", "--duration", "100ms", "--rounds", "1")
	require.Less(t, lines[0]["seconds"], 5.0)
	_, _, code := c.run("", "bench", "publish", "--size", "x")
	require.Equal(t, exitUsage, code)
}
