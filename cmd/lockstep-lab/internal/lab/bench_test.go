// SPDX-License-Identifier: Apache-2.0

//go:build deep

package lab_test

import (
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/lab"
	"github.com/stretchr/testify/require"
)

// Each command runs with a short duration, and prints its results.
func TestMeasurements(t *testing.T) {
	c := clitest.CLI{T: t, Program: lab.Run}
	for _, args := range [][]string{
		{"publish", "--standalone", "--messages", "50"},
		{
			"publish", "--pair", "--messages", "500", "--window", "100", "--producers", "2", "--queues", "2", "--sync",
			"off",
		},
		{"consume", "--standalone", "--messages", "500", "--consumers", "2"},
		{"store", "--messages", "500", "--bursts", "1"},
	} {
		lines := c.Lines(append([]string{args[0], "--rounds", "2"}, args[1:]...)...)
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
	lines := c.Lines("queues", "--queues", "200", "--messages", "500", "--size", "100", "--rounds", "1")
	require.Len(t, lines, 5)
	require.Positive(t, lines[4]["start_ms"])
	lines = c.Lines("queues", "--standalone", "--queues", "70", "--messages", "200", "--rounds", "1")
	require.Len(t, lines, 10)
	require.Equal(t, "round robin", lines[3]["phase"])
	require.Positive(t, lines[4]["start_ms"])
	lines = c.Lines("growth", "--levels", "10,1000", "--messages", "100", "--acks", "50", "--rounds", "2")
	require.Len(t, lines, 2*4+4)
	require.InDelta(t, 1000, lines[len(lines)-3]["stored"], 0)
	lines = c.Lines("store", "--messages", "200", "--bursts", "4", "--rounds", "1", "--far", "--sync", "off")
	require.Len(t, lines, 2*4+2+2+4)
	lines = c.Lines("search", "--messages", "20000", "--rounds", "2", "--standalone", "--sync", "off")
	require.Len(t, lines, 2*2+2)
	require.Equal(t, "from newest", lines[5]["phase"])
	require.Positive(t, lines[5]["rate_per_s"])
	lines = c.Lines("knobs", "--knob", "checkpoint-bytes", "--values", "1MiB,64MiB", "--duration", "300ms",
		"--standalone")
	require.Len(t, lines, 4)
	require.Equal(t, "64MiB", lines[3]["value"])
	require.Positive(t, lines[3]["log_mb"])
	lines = c.Lines("knobs", "--knob", "checkpoint-bytes", "--values", "1MiB", "--duration", "1s", "--standalone",
		"--rate", "100")
	require.LessOrEqual(t, lines[1]["messages"], 102.0)
	require.Positive(t, lines[1]["messages"])
	for sync, transports := range map[string]int{"off": 2, "always": 1} {
		lines = c.Lines("bound", "--duration", "50ms", "--rounds", "2", "--size", "100", "--window", "1,64",
			"--sync", sync)
		require.Len(t, lines, 2*3*(1+transports)) // windows, rounds and their median
		require.Equal(t, "tcp", lines[len(lines)-1]["phase"])
		require.Positive(t, lines[len(lines)-1]["ratio"])
	}
	lines = c.Lines("amqp", "--duration", "100ms", "--rounds", "2", "--publishers", "8", "--sync", "off")
	require.Len(t, lines, 2*2*2+4)
	require.Equal(t, "consume amqp", lines[11]["phase"])
	require.Positive(t, lines[11]["ratio"])
	lines = c.Lines("mixed", "--standalone", "--producers", "6", "--consumers", "8", "--queues", "3",
		"--backlog", "300", "--duration", "200ms")
	require.Len(t, lines, 4)
	require.Equal(t, "deliver", lines[3]["phase"])
	require.Positive(t, lines[2]["messages"])
	require.GreaterOrEqual(t, lines[3]["messages"], 300.0)
	lines = c.Lines("capacity", "--messages", "2000", "--queues", "2", "--duration", "1s", "--processors", "2")
	require.Len(t, lines, 2)
	for i, phase := range []string{"publish", "consume"} {
		require.Equal(t, phase, lines[i]["phase"])
		require.InDelta(t, 2, lines[i]["processors"], 0)
		require.IsType(t, []any{}, lines[i]["sections"]) // measure.TestProfiled checks the contents
		require.Contains(t, lines[i]["lock_wait_us_per_message"], "standby")
	}
	lines = c.Lines("publish", "--standalone", "--duration", "100ms", "--rounds", "1")
	require.Less(t, lines[0]["seconds"], 5.0)
	_, _, code := c.Run("", "publish", "--size", "x")
	require.Equal(t, cli.ExitUsage, code)
}

// Maintenance operations run on a pair while messages are published, and the results of each are printed.
func TestMaintenance(t *testing.T) {
	c := clitest.CLI{T: t, Program: lab.Run}
	for _, wrong := range []string{
		"--work=sleep", "--work=", "--publishers=0", "--publishers=501", "--resize-to=2KiB", "--store=x", "--quiet=0s",
		"--rounds=0", "--resize-to=", "--resize-to=3000",
	} {
		_, _, code := c.Run("", "maintenance", wrong)
		require.Equal(t, cli.ExitUsage, code, wrong)
	}
	lines := c.Lines("maintenance", "--work", "nothing,resize,backup,scan", "--store", "4MiB", "--rounds", "1",
		"--publishers", "2", "--quiet", "300ms", "--settle", "0s", "--per-second", "200", "--sync", "off")
	require.Len(t, lines, 2*4)
	for i, l := range lines {
		require.Equal(t, []any{"nothing", "resize", "backup", "scan"}[i%4], l["phase"])
		require.Positive(t, l["p99_ratio"])
		for _, phase := range []string{"quiet", "while"} {
			measured, ok := l[phase].(map[string]any)
			require.True(t, ok)
			require.Positive(t, measured["messages"])
		}
		require.Equal(t, i%4 > 0, l["mb"].(float64) > 0)
		require.Equal(t, i >= 4, l["median"] == true)
	}
	moment, ok := lines[1]["slowest"].([]any)[0].(map[string]any)
	require.True(t, ok)
	require.Contains(t, moment, "step")
}

// A queue moves between two pairs while messages are published, and the results of each move are printed.
func TestMove(t *testing.T) {
	c := clitest.CLI{T: t, Program: lab.Run}
	for _, wrong := range []string{
		"--rate=0", "--publishers=0", "--publishers=501", "--quiet=0s", "--rounds=0", "--size=x",
	} {
		_, _, code := c.Run("", "move", wrong)
		require.Equal(t, cli.ExitUsage, code, wrong)
	}
	lines := c.Lines("move", "--messages", "1000", "--size", "100", "--rounds", "2", "--quiet", "300ms", "--rate", "100",
		"--sync", "off", "--dedup-window", "1h")
	require.Len(t, lines, 3)
	for i, phase := range []string{"to pair-2", "to pair-1"} {
		require.Equal(t, phase, lines[i]["phase"])
		for _, field := range []string{"pause_ms", "fenced_ms", "mb", "mb_per_s", "passes"} {
			require.Positive(t, lines[i][field], field)
		}
		quiet, ok := lines[i]["quiet"].(map[string]any)
		require.True(t, ok)
		require.Positive(t, quiet["messages"])
	}
	require.Equal(t, true, lines[2]["median"])
	require.GreaterOrEqual(t, lines[2]["fenced_ms_max"], lines[2]["fenced_ms_median"])
}

// A pair, a fleet of one pair and a larger fleet are measured in each round, and the CPU time of each pair is compared.
func TestFleet(t *testing.T) {
	c := clitest.CLI{T: t, Program: lab.Run}
	for _, wrong := range []string{"--pairs=0", "--window=0", "--consumers=-1", "--rounds=0", "--size=x"} {
		_, _, code := c.Run("", "fleet", wrong)
		require.Equal(t, cli.ExitUsage, code, wrong)
	}
	lines := c.Lines("fleet", "--pairs", "2", "--messages", "20000", "--size", "100", "--rounds", "1", "--sync", "off",
		"--consumers", "1")
	require.Len(t, lines, 2*3)
	for i, l := range lines {
		setup, pairs := []string{"pair", "fleet", "fleet"}[i%3], []int{1, 1, 2}[i%3]
		require.Equal(t, setup, l["setup"])
		require.InDelta(t, pairs, l["pairs"], 0)
		require.InDelta(t, pairs*20_000, l["messages"], 0)
		require.Len(t, l["processes"], 2*pairs+1)
		measured, ok := l["pair_cpu"].([]any)
		require.True(t, ok)
		require.Len(t, measured, pairs)
		for _, field := range []string{"derived_per_cpu_s", "derived_ratio", "client_cpu_us_per_message", "rate_per_s"} {
			require.Positive(t, l[field], field)
		}
		require.Equal(t, i%3 > 0, l["derived_ratio_goal"] != nil)
		require.Equal(t, i >= 3, l["median"] == true)
	}
	lines = c.Lines("fleet", "--pairs", "1", "--messages", "20000", "--rounds", "1", "--sync", "off", "--concurrent")
	require.Len(t, lines, 2*2)
}
