// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/lab"
	"github.com/stretchr/testify/require"
)

// fakePeers creates a directory with programs that print output like the peers' programs.
func fakePeers(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for name, script := range map[string]string{
		"nats": `case $1 in
r1) printf 'nats-r1\tpub1\t512\t1000\t1\t2\t3\t\nnats-r1\tpub64\t512\t2000\t1\t2\t3\t\nnats-r1\tconsume\t512\t3000\t-\t-\t3\tn=700 left=0\nnats-r1\tconsume-1q\t512\t3000\t-\t-\t3\tn=500 left=0\n' ;;
r3-always) printf 'nats-r3-always\tpub1\t512\t100\t1\t2\t3\t\n' ;;
esac`,
		"chronicle": `for a in "$@"; do export "$a"; done
[ -e "$DIR" ] && exit 1
for i in $(seq "$GB"); do printf '%d\t10\t1000\t1\t10\t2000\t1\n' "$i"; done; printf 'median\t1\t1\t1\t1\t1\t1\n'`,
	} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, name, "run"), []byte("#!/bin/sh\n"+script+"\n"), 0o700))
	}
	return dir
}

func comparisons(lines []map[string]any) (found []map[string]any) {
	for _, l := range lines {
		if l["workload"] == "compare" {
			found = append(found, l)
		}
	}
	return found
}

func TestAllRejectsUnknownPart(t *testing.T) {
	c := clitest.CLI{T: t, Program: lab.Run}
	_, stderr, code := c.Run("", "all", "--only", "nothing")
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, stderr, "growth")
	require.True(t, strings.HasPrefix(stderr, "lockstep-lab: "), stderr)
}

// compare measures Lockstep with the load of each peer. The peers are scripts that print results.
func TestCompare(t *testing.T) {
	c, dir := clitest.CLI{T: t, Program: lab.Run}, fakePeers(t)
	common := []string{"compare", "--lock", filepath.Join(dir, "lock"), "--peers", dir}
	lines := c.Lines(append(common, "--peer", "nats", "--standalone", "--configs", "r1", "--size", "512", "--duration",
		"100ms", "--rounds", "1")...)
	found := comparisons(lines)
	require.Len(t, found, 6)
	first := found[0]["peers"].([]any)[0].(map[string]any)
	require.Equal(t, "nats-r1", first["name"])
	require.InDelta(t, found[0]["ours"].(map[string]any)["rate_per_s"].(float64)/1000, first["ratio"], 0.01)
	for _, l := range lines {
		if l["case"] == "5 consumers" && l["setup"] == "standalone" {
			require.InDelta(t, 700, l["messages"], 0, "as many as the peer consumed")
		}
	}
	found = comparisons(c.Lines(append(common, "--peer", "chronicle", "--messages", "300", "--bursts", "2", "--rounds",
		"2", "--sync", "off,always")...))
	require.Len(t, found, 4)
	require.Equal(t, "always", found[2]["sync"])
	ours := found[3]["ours"].(map[string]any)
	require.InDelta(t, 4, ours["rounds"], 0, "two bursts in each of two rounds")

	out := c.OK("compare", "--peer", "chronicle", "--peers", t.TempDir(), "--lock", "", "--messages", "100",
		"--bursts", "1", "--rounds", "1")
	require.Contains(t, out, "not installed")
	require.Contains(t, out, "burst read")
	_, _, code := c.Run("", "compare", "--peer", "unknown", "--lock", "")
	require.Equal(t, cli.ExitUsage, code)
}
