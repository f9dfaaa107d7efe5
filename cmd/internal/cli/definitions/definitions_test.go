// SPDX-License-Identifier: Apache-2.0

package definitions_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/test/golden"
)

const example = `version: 1
queues:
  - name: events
    retention_age: 24h
    subscriptions: []
  - name: large.dead
  - name: orders
    max_bytes: 64MiB
    max_deliveries: 5
    dead_letter: poison
    ttl: 1h30m
    overflow: drop-head
    subscriptions:
      - name: billing
      - name: large
        filter: properties.total > 100
        max_deliveries: 0
        dead_letter: large.dead
    forwards:
      - to: events
        filter: subject == "order"
  - name: poison
`

// rejectedStep is a planned change in the JSON output of a rejected import.
type rejectedStep struct {
	Subscription string
	Changes      []struct{ To string }
}

// import creates the queues of the file, and a second import changes nothing. export writes the same file. diff lists
// differences. --prune deletes queues that the file does not name.
func TestDefinitions(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	file := filepath.Join(t.TempDir(), "queues.yaml")
	require.NoError(t, os.WriteFile(file, []byte(example), 0o600))
	c.OK("queue", "create", "old")
	c.OK("publish", "old", "1", "2")
	c.OK("queue", "create", "answers", "--temporary", "1h")

	stdout, stderr, code := c.Run("", "definitions", "diff", file)
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "differs")
	require.Equal(t, `+ queue events  retention_age: 24h, subscriptions: none
+ queue large.dead
+ queue poison
+ queue orders  max_bytes: 64MiB, max_deliveries: 5, dead_letter: poison, ttl: 1h30m, overflow: drop-head, subscriptions: billing
+ subscription large of orders  filter: properties.total > 100, max_deliveries: 0, dead_letter: large.dead
~ forwards of orders  to events: copy if subject == "order"
- queue old  with 2 messages
`, stdout)
	require.InDelta(t, 0, c.Lines("definitions", "import", file, "--dry-run")[0]["applied"], 0)
	require.NotContains(t, c.OK("queue", "list"), "orders")

	stdout = c.OK("definitions", "import", file)
	require.Contains(t, stdout, "applied 6 changes")
	require.Contains(t, stdout, ": queue old\n")
	require.Contains(t, c.OK("definitions", "import", file), "no changes")
	q := c.Lines("queue", "show", "orders")[0]
	require.Equal(t, "poison", q["dead_letter"])
	require.Equal(t, "1h30m", q["ttl"])
	require.Empty(t, c.Lines("queue", "show", "events")[0]["subscriptions"])

	c.OK("queue", "alter", "orders", "--ttl", "2h", "--dead-letter", "old")
	c.OK("subscription", "create", "orders", "spare")
	c.OK("subscription", "alter", "orders", "large", "--filter", "size > 3", "--inherit", "max-deliveries",
		"--dead-letter", "", "--redelivery-delay", "3s")
	stdout, _, code = c.Run("", "definitions", "diff", file)
	require.Equal(t, cli.ExitError, code)
	require.Equal(t, `~ queue orders  dead_letter: old -> poison, ttl: 2h -> 1h30m
~ subscription large of orders  filter: size > 3 -> properties.total > 100, max_deliveries: - -> 0, dead_letter: "" -> large.dead, redelivery_delay: 3s -> -
- subscription spare of orders
- queue old  with 2 messages
`, stdout)
	testPruneNeedsYes(t, c, file)
	// The prompt lists the objects to be deleted.
	_, stderr, code = c.Answering("n\n", "definitions", "import", file, "--prune")
	require.Equal(t, cli.ExitError, code)
	for _, count := range []string{"4 changes", "2 deletions", "2 messages"} {
		require.Contains(t, stderr, count)
	}
	stdout, stderr, code = c.Answering("y\n", "definitions", "import", file, "--prune")
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Contains(t, stdout, "applied 4 changes")
	require.Empty(t, c.Lines("definitions", "diff", file)[0]["changes"])
	require.Equal(t, example, c.OK("definitions", "export"))
	require.Contains(t, c.OK("queue", "list"), "answers", "a temporary queue belongs to its client")

	// Priorities are immutable, so the import changes nothing.
	changed := filepath.Join(t.TempDir(), "changed.yaml")
	require.NoError(t, os.WriteFile(changed, []byte(`version: 1
queues:
  - name: more
  - {name: orders, priorities: true, subscriptions: [billing, {name: large, filter: size > 3}]}
`), 0o600))
	stdout, stderr, code = c.Run("", "definitions", "import", changed, "--output", "json")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "immutable")
	var refused struct {
		Changes   []rejectedStep
		Conflicts []string
		Applied   int
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &refused), stdout)
	require.Zero(t, refused.Applied)
	require.Len(t, refused.Conflicts, 1)
	require.Contains(t, refused.Conflicts[0], "orders: priorities")
	large := slices.IndexFunc(refused.Changes, func(c rejectedStep) bool { return c.Subscription == "large" })
	require.NotEqual(t, -1, large, stdout)
	require.Equal(t, "size > 3", refused.Changes[large].Changes[0].To)
	require.NotContains(t, c.OK("queue", "list"), "more")

	// After a failure in the middle, another import completes the work once the cause is fixed.
	partial := "version: 1\nqueues: [{name: p1}, {name: p2, dead_letter: p9}]\n"
	_, stderr, code = c.Run(partial, "definitions", "import", "-", "--prefix", "p")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "step 2")
	require.Contains(t, stderr, "queue p2")
	c.OK("queue", "create", "p9")
	stdout, stderr, code = c.Run(partial, "definitions", "import", "-", "--prefix", "p")
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Contains(t, stdout, "applied 1 change\n")
	require.Contains(t, stdout, ", queue p9")
	_, stderr, code = c.Run("version: 1\nqueues: [{name: a, tl: 3s}]\n", "definitions", "import", "-")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "input:2:")
	require.Contains(t, stderr, `"tl"`)
	testPolicies(t, c)
	testSchedules(t, c)
	testTemporaryByPolicy(t, c)
}

// Without a terminal and without --yes, an import with deletions prints its plan and changes nothing.
func testPruneNeedsYes(t *testing.T, c clitest.CLI, file string) {
	t.Helper()
	before := c.OK("definitions", "export")
	stdout, stderr, code := c.Run("", "definitions", "import", file, "--prune", "--output", "json")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "--yes")
	var refused struct {
		Changes []rejectedStep
		Applied int
	}
	require.NoError(t, json.Unmarshal([]byte(stdout), &refused), stdout)
	require.Len(t, refused.Changes, 4)
	require.Zero(t, refused.Applied)
	require.Equal(t, before, c.OK("definitions", "export"))
}

// Policies are created after their dead-letter queues and before the queues that depend on them. A file without
// policies does not affect existing policies.
func testPolicies(t *testing.T, c clitest.CLI) {
	t.Helper()
	c.OK("definitions", "import", "--prune", "--yes", writeFile(t, "version: 1\nqueues: []\n"))
	file := writeFile(t, `version: 1
queues:
  - name: shop.bad
  - name: shop.a
    max_messages: 10
    overflow: dead-letter-head
  - name: shop.own
    max_deliveries: 0
policies:
  - {pattern: gone, ttl: 1h}
  - {pattern: shop.*, priority: 10, max_deliveries: 5, dead_letter: shop.bad, limits: {max_bytes: 1GiB}}
`)
	golden.Text(t, "policies-plan.txt", c.OK("definitions", "import", file, "--dry-run"))
	c.OK("definitions", "import", file)
	c.OK("definitions", "diff", file)
	q := c.Lines("queue", "show", "shop.a")[0]
	require.Equal(t, "shop.bad", q["dead_letter"])
	require.Equal(t, map[string]any{
		"dead_letter": "policy shop.*", "max_bytes": "policy shop.*", "max_deliveries": "policy shop.*",
		"max_messages": "queue", "overflow": "queue",
	}, q["sources"])

	c.OK("policy", "delete", "gone")
	c.OK("policy", "put", "shop.*", "--max-deliveries", "3")
	c.OK("queue", "alter", "shop.own", "--reset", "max-deliveries")
	stdout, _, _ := c.Run("", "definitions", "diff", file)
	golden.Text(t, "policies-diff.txt", stdout)
	exported := writeFile(t, c.OK("definitions", "export"))
	c.OK("definitions", "diff", exported)
	c.OK("definitions", "import", "--prune", "--yes", writeFile(t, "version: 1\nqueues: []\n"))
	require.Len(t, c.Lines("policy", "list"), 1)
	c.OK("definitions", "import", "--prune", "--yes", writeFile(t, "version: 1\nqueues: []\npolicies: []\n"))
	require.Empty(t, c.Lines("policy", "list"))
}

// Schedules are created after their queues and deleted before them. A file without schedules does not affect
// existing schedules.
func testSchedules(t *testing.T, c clitest.CLI) {
	t.Helper()
	c.OK("definitions", "import", "--prune", "--yes", writeFile(t, "version: 1\nqueues: []\n"))
	file := writeFile(t, `version: 1
queues:
  - name: jobs
schedules:
  - name: nightly
    queue: jobs
    cron: 0 2 * * *
    time_zone: Europe/Berlin
    missed: all
    content_type: application/json
    properties:
      attempts: 3
      ratio: 2.0
      team: sales
    body: '{"job":"cleanup"}'
  - name: poll
    queue: jobs
    every: 30s
    paused: true
    body_base64: /w==
`)
	golden.Text(t, "schedules-plan.txt", c.OK("definitions", "import", file, "--dry-run"))
	c.OK("definitions", "import", file)
	c.OK("definitions", "diff", file)
	golden.Text(t, "schedules-export.yaml", c.OK("definitions", "export"))
	c.OK("definitions", "diff", writeFile(t, c.OK("definitions", "export", "--output", "json")))

	c.OK("schedule", "resume", "poll")
	c.OK("schedule", "put", "nightly", "--cron", "@weekly", "--queue", "jobs", "--property", "team=support")
	c.OK("schedule", "put", "old", "--every", "1h", "--queue", "jobs")
	stdout, _, code := c.Run("", "definitions", "diff", file)
	require.Equal(t, cli.ExitError, code)
	golden.Text(t, "schedules-diff.txt", stdout)
	c.OK("definitions", "import", "--prune", "--yes", writeFile(t, "version: 1\nqueues: [{name: jobs}]\n"))
	require.Len(t, c.Lines("schedule", "list"), 3)
	c.OK("definitions", "import", "--prune", "--yes", writeFile(t, "version: 1\nqueues: []\nschedules: []\n"))
	require.Empty(t, c.Lines("schedule", "list"))
}

func writeFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "definitions.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// A queue that is temporary because of a policy is neither exported nor deleted.
func testTemporaryByPolicy(t *testing.T, c clitest.CLI) {
	t.Helper()
	c.OK("policy", "put", "answer.*", "--temporary", "1h")
	c.OK("queue", "create", "answer.1")
	c.OK("queue", "create", "answer.kept", "--temporary", "0")
	c.OK("publish", "answer.1", "a")
	exported := c.OK("definitions", "export")
	require.NotContains(t, exported, "answer.1")
	require.Contains(t, exported, "answer.kept")
	require.Empty(t, c.Lines("definitions", "diff", writeFile(t, exported))[0]["changes"])
	c.OK("definitions", "import", "--prune", "--yes", writeFile(t, "version: 1\nqueues: []\n"))
	require.InDelta(t, 1, c.Lines("queue", "show", "answer.1")[0]["messages"], 0)
	require.NotContains(t, c.OK("queue", "list"), "answer.kept")
}
