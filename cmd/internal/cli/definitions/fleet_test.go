// SPDX-License-Identifier: Apache-2.0

package definitions_test

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/test/coordtest"
	"github.com/lockstep-mq/lockstep/test/golden"
	"github.com/lockstep-mq/lockstep/test/harness"
)

const fleetExample = `version: 1
placement_rules:
  - pattern: eu.*
    labels:
      name: a
  - pattern: orders*
    pair: b
queues:
  - name: audit
    placement_group: eu.dead
  - name: eu.dead
  - name: invoices
    pair: b
    max_deliveries: 5
  - name: orders
    dead_letter: orders.dead
    max_deliveries: 3
  - name: orders.dead
policies:
  - pattern: '*'
    limits:
      max_bytes: 10GiB
roles:
  - name: reader
    rights: [consume, browse]
access:
  - principal: anonymous
    rights: [operate]
  - principal: anonymous
    queue: '*'
    rights: [publish, consume, browse, manage]
    roles: [reader]
schedules:
  - name: nightly
    queue: orders
    cron: 0 2 * * *
    body: x
pairs:
  - name: b
    policies:
      - pattern: orders*
        ttl: 24h
`

// startFleet starts two nodes, each of which is a pair of a fleet, and returns a client of pair a.
func startFleet(t *testing.T) clitest.CLI {
	t.Helper()
	etcd := coordtest.StartEtcd(t, t.TempDir(), "")
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	var addresses []string
	for _, pair := range []string{"a", "b"} {
		settings := maps.Clone(harness.SmallNodes())
		settings["fleet.pair"], settings["fleet.endpoints"] = pair, strings.Join(etcd.Endpoints(), ",")
		settings["fleet.labels"] = "name=" + pair
		_, c := clitest.StartNodesWith(t, true, settings)
		addresses = append(addresses, c.Addr)
	}
	c := clitest.CLI{T: t, Addr: addresses[0]}
	require.Eventually(t, func() bool {
		_, _, code := c.Run("", "fleet", "status")
		return code == cli.ExitOK && len(c.Lines("fleet", "pairs")) == 2
	}, 2*time.Minute, 20*time.Millisecond)
	return c
}

// The file of a fleet creates queues on the pairs that the rules or the file require. A second import changes nothing,
// and the export of the fleet equals the fleet.
func TestFleetDefinitions(t *testing.T) {
	c := startFleet(t)
	dir := t.TempDir()
	write := func(name, content string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		return file
	}
	file := write("fleet.yaml", fleetExample)
	_, _, code := c.Run("", "definitions", "import", file)
	require.Equal(t, cli.ExitUsage, code, "--fleet is required")
	plan := c.OK("definitions", "import", file, "--fleet", "--dry-run")
	golden.Text(t, "fleet-plan.txt", plan)
	require.Empty(t, c.Lines("fleet", "queues"))
	c.OK("definitions", "import", file, "--fleet", "--yes")

	placed := func() map[string]string {
		pairs := map[string]string{}
		for _, v := range c.Lines("fleet", "queues") {
			pairs[v["queue"].(string)] = v["pair"].(string)
		}
		return pairs
	}
	want := map[string]string{"eu.dead": "a", "audit": "a", "invoices": "b", "orders": "b", "orders.dead": "b"}
	require.Eventually(t, func() bool { return maps.Equal(want, placed()) }, time.Minute, 20*time.Millisecond)
	require.Len(t, c.Lines("fleet", "status")[0]["rules"], 2, "the rule for invoices was removed")
	require.Contains(t, c.OK("definitions", "import", file, "--fleet"), "no changes")
	c.OK("definitions", "diff", file, "--fleet")

	exported := c.OK("definitions", "export", "--fleet")
	golden.Text(t, "fleet.yaml", exported)
	whole := write("export.yaml", exported)
	c.OK("definitions", "diff", whole, "--fleet")
	require.Empty(t, c.Lines("definitions", "import", whole, "--fleet", "--prune", "--yes")[0]["changes"])

	moved := write("moved.yaml", "version: 1\nplacement_rules:\n  - {pattern: 'orders*', pair: a}\nqueues:\n"+
		"  - {name: invoices, pair: a}\n  - {name: loose}\nschedules:\n  - {name: hourly, queue: loose, every: 1h}\n")
	stdout, _, code := c.Run("", "definitions", "diff", moved, "--fleet")
	require.Equal(t, cli.ExitError, code)
	golden.Text(t, "fleet-diff.txt", stdout)
	v := c.Lines("definitions", "import", moved, "--fleet", "--yes", "--prune")[0]
	require.Len(t, v["misplaced"], 1)
	require.Eventually(t, func() bool { return len(placed()) == 2 }, time.Minute, 20*time.Millisecond)
	require.Equal(t, "b", placed()["invoices"], "existing queues are not moved")
	stdout, _, code = c.Run("", "definitions", "import", moved, "--fleet", "--yes", "--prune")
	require.Equal(t, cli.ExitOK, code)
	require.Contains(t, stdout, "no changes")

	require.Contains(t, c.OK("definitions", "export", "--fleet"), "name: loose")
	c.OK("policy", "put", "loose", "--temporary", "1h")
	require.NotContains(t, c.OK("definitions", "export", "--fleet"), "name: loose")

	for _, content := range []string{
		"version: 1\nqueues: [{name: q, pair: x}]\n", "version: 1\npairs: [{name: x, policies: []}]\n",
	} {
		_, _, code := c.Run(content, "definitions", "import", "-", "--fleet", "--yes")
		require.Equal(t, cli.ExitError, code)
	}
}
