// SPDX-License-Identifier: Apache-2.0

package commands_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/stretchr/testify/require"
)

// An invalid command line has exit code 2 and refers to the help.
func TestInvalidCommandLines(t *testing.T) {
	c := clitest.CLI{T: t}
	for _, args := range [][]string{
		{"nonsense"},
		{"--nonsense"},
		{"queue"},
		{"queue", "nonsense"},
		{"pair"},
		{"pair", "nonsense"},
		{"serve", "--listen", "nowhere"},
		{"queue", "create"},
		{"queue", "show", "a", "b"},
		{"status", "--output", "xml"},
		{"status", "--addr", "nowhere"},
		{"status", "--addr", ","},
		{"status", "--addr", "127.0.0.1:99999"},
		{"queue", "list", "--addr", "127.0.0.1:0"},
		{"checkpoint", "127.0.0.1:99999"},
		{"consume", "q", "--prefetch", "-1"},
		{"consume", "q", "--no-ack", "--reject"},
		{"queue", "create", "q", "--max-deliveries", "-1"},
		{"queue", "replay-dead"},
		{"queue", "replay-dead", "q", "--limit", "-1"},
		{"publish", "q", "--property", "x"},
		{"subscription", "create", "q", "s", "--start", "middle"},
		{"queue", "alter", "q"},
		{"queue", "create", "q", "--max-bytes", "much"},
		{"demo", "--duration", "1ms"},
		{"store", "dump-page", "/tmp", "x"},
		{"consume", "q", "--count", "-1"},
		{"store", "scan", "--page-size-max", "3000"},
		{"store", "scan", "--node", "a", "--data-dir", "x"},
		{"store", "resize", "--switch-back"},
		{"store", "resize", "--data-dir", "x"},
		{"store", "resize", "--data-dir", "x", "--dry-run"},
		{"store", "compact", "--rolling", "--node", "a"},
		{"store", "restore", "x"},
		{"store", "restore", "x", "--data-dir", "y", "--to-time", "tomorrow"},
		{"store", "backups", "x", "--node", "a"},
		{"store", "backups", "--set", "x"},
		{"store", "settings"},
		{"store", "settings", "get", "page-size"},
		{"store", "settings", "set", "page-size-current", "4096"},
		{"store", "settings", "set", "resize-on-startup", "maybe"},
		{"job"},
		{"job", "put", "j"},
		{"job", "put", "j", "--schedule", "@daily", "--kind", "dance"},
	} {
		stdout, stderr, code := c.Run("", args...)
		require.Equal(t, cli.ExitUsage, code, "%v: %s", args, stderr)
		require.Empty(t, stdout, args)
		require.Contains(t, stderr, "--help", args)
	}
}

func TestVersion(t *testing.T) {
	c := clitest.CLI{T: t}
	version, _ := c.Lines("version")[0]["version"].(string)
	require.NotEmpty(t, version)
	require.Contains(t, c.OK("version"), "lockstep "+version)
	require.Contains(t, c.OK("completion", "bash"), "lockstep")
}

// If no node responds, the error contains the addresses, and a hint to change them. In a bubble, time does not
// advance during a system call, so that no timeout expires before the connection is refused.
func TestNoNodeResponds(t *testing.T) { synctest.Test(t, testNoNodeResponds) }

func testNoNodeResponds(t *testing.T) {
	c := clitest.CLI{T: t, Addr: "127.0.0.1:1"}
	_, stderr, code := c.Run("", "queue", "list", "--timeout", "200ms")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "127.0.0.1:1")
	require.Contains(t, stderr, "refused")
	stdout, stderr, code := c.Run("", "status")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stdout, "connection refused")
	require.Contains(t, stderr, "LOCKSTEP_ADDR")

	for _, args := range [][]string{
		{"queue", "list"},
		{"publish", "q", "x"},
		{"consume", "q"},
		{"browse", "q"},
		{"switchover"},
		{"verify"},
		{"job", "list"},
		{"store", "scan", "--last"},
	} {
		_, stderr, code = c.Run("", args...)
		require.Equal(t, cli.ExitError, code, args)
		require.Equal(t, 1, strings.Count(stderr, "127.0.0.1:1"), "%v: %s", args, stderr)
		require.Contains(t, stderr, "connection refused")
		require.NotContains(t, stderr, "deadline")
	}
}

// With only the standby's address, commands follow its redirect to the active.
func TestConnectThroughStandby(t *testing.T) {
	p, c := clitest.StartNodes(t, false)
	_, standby := clitest.InSync(t, p, c)
	c.Addr = standby.Address
	c.OK("queue", "create", "q")
	c.OK("publish", "q", "one", "two")
	require.Equal(t, "one\n", c.OK("browse", "q", "--bodies", "-n", "1"))
	require.Equal(t, "one\ntwo\n", c.OK("consume", "q", "-f", "--count", "2"))
	require.Equal(t, false, c.Lines("switchover", "--to", standby.Name)[0]["already"])
}

// TestCommands runs the life cycle of queues on one node, and the offline commands on its files.
func TestCommands(t *testing.T) {
	p, c := clitest.StartNodes(t, true)

	require.Equal(t, "orders", c.Lines("queue", "create", "orders", "--max-messages", "1000")[0]["name"])
	_, stderr, code := c.Run("", "queue", "create", "orders")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "orders")
	require.Contains(t, c.OK("queue", "create", "orders", "--if-not-exists"), "already exists")
	c.OK("queue", "create", "prices", "-s", "billing", "-s", "audit")

	require.Contains(t, c.OK("publish", "orders", "one", "two", "--property", "kind=test"), "1 to 2")
	stdout, stderr, code := c.Run("three\nfour\n", "publish", "orders", "-o", "json")
	require.Equal(t, cli.ExitOK, code, stderr)
	require.Equal(t, 2, strings.Count(stdout, `"queue":"orders"`))
	file := filepath.Join(t.TempDir(), "body")
	require.NoError(t, os.WriteFile(file, []byte{0xff, 0, 1}, 0o600))
	c.OK("publish", "orders", "--file", file)
	_, stderr, code = c.Run("", "publish", "missing", "x")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "missing")
	require.InDelta(t, 1, c.Lines("publish", "made", "x", "--create")[0]["sequence"], 0)

	browsed := c.Lines("browse", "orders")
	require.Len(t, browsed, 5)
	require.Equal(t, "one", browsed[0]["body"])
	require.Equal(t, map[string]any{"kind": "test"}, browsed[0]["properties"])
	require.Equal(t, "/wAB", browsed[4]["body_base64"])
	table := c.OK("browse", "orders", "--from", "2", "--limit", "2")
	require.Contains(t, table, "two")
	require.Contains(t, table, "three")
	require.NotContains(t, table, "four")
	require.Equal(t, "one\ntwo\n", c.OK("browse", "orders", "--bodies", "-n", "2"))

	require.Equal(t, "one\ntwo\n", c.OK("consume", "orders", "-f", "--count", "2", "--no-ack"))
	require.Equal(t, "one\ntwo\n", c.OK("consume", "orders", "-f", "--count", "2"))
	require.Len(t, c.Lines("consume", "orders", "-f", "-n", "3"), 3)
	require.Empty(t, c.OK("consume", "orders", "--wait", "100ms"))

	c.OK("publish", "prices", "1", "2", "3")
	require.Contains(t, c.OK("subscription", "create", "prices", "late", "--start", "earliest"), "backlog: 3 messages")
	require.Contains(t, c.OK("queue", "purge", "prices", "-s", "audit"), "purged 3 messages")
	show := c.Lines("queue", "show", "prices")[0]
	require.InDelta(t, 3, show["messages"], 0)
	require.Len(t, show["subscriptions"], 3)
	require.Contains(t, c.OK("queue", "show", "prices"), "billing")
	c.OK("subscription", "delete", "prices", "late")
	altered := c.Lines("queue", "alter", "orders", "--max-bytes", "1MiB")[0]
	require.InDelta(t, 1000, altered["max_messages"], 0)
	require.InDelta(t, 1<<20, altered["max_bytes"], 0)
	_, stderr, code = c.Run("", "queue", "delete", "prices", "--if-empty")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "prices")
	var queues []map[string]any
	require.NoError(t, json.Unmarshal([]byte(c.OK("queue", "list", "-o", "json")), &queues))
	require.Len(t, queues, 3)
	require.Equal(t, []map[string]any{{"messages": 1.0}}, c.Lines("queue", "delete", "made"))
	require.Contains(t, c.OK("queue", "list", "or"), "orders")

	status := c.Lines("status")[0]
	node, _ := status["nodes"].([]any)[0].(map[string]any)
	require.Equal(t, "active-alone", node["role"])
	require.Contains(t, c.OK("status"), p.Addresses()[0])
	require.Contains(t, c.OK("checkpoint"), "checkpoint")
	require.Contains(t, c.OK("store", "check"), "is valid")
	online := c.Lines("store", "digest")[0]

	_, stderr, code = c.Run("", "store", "check", filepath.Join(p.Nodes[0].Dir, "data"))
	require.Equal(t, cli.ExitError, code, "the node runs")
	require.Contains(t, stderr, "lockstep status", "the hint for datadir.ErrInUse")
	require.NoError(t, p.Close())
	offlineCommands(t, c, filepath.Join(p.Nodes[0].Dir, "data"), online)
}

// offlineCommands checks the commands for the files of a stopped node against online, the content reported by the
// running node.
func offlineCommands(t *testing.T, c clitest.CLI, dir string, online map[string]any) {
	t.Helper()
	check := c.Lines("store", "check", dir)[0]
	require.Equal(t, true, check["sound"])
	require.InDelta(t, 3, check["messages"], 0)
	offline := c.Lines("store", "digest", dir)[0]
	require.Equal(t, online["content"], offline["content"])
	meta := c.Lines("store", "dump-meta", dir)[0]
	require.InDelta(t, 2048, meta["page_size"], 0)
	require.Contains(t, c.OK("store", "dump-meta", dir), "Checkpoint")

	log := c.Lines("store", "dump-log", dir)
	require.Equal(t, "term-start", log[0]["kind"])
	last := log[len(log)-1]
	require.Empty(t, last["problem"])
	require.Len(t, c.Lines("store", "dump-log", dir, "--limit", "2"), 3)
	text := c.OK("store", "dump-log", dir, "--from", "2")
	require.Contains(t, text, `"orders"`)
	require.Contains(t, text, "is complete")
	segments, err := filepath.Glob(filepath.Join(dir, "log", "*.seg"))
	require.NoError(t, err)
	require.NotEmpty(t, segments)
	require.Contains(t, c.OK("store", "dump-log", segments[0], "--messages"), `"orders"`, "a single file")

	packed := 0
	for no := 1; no < 40; no++ {
		stdout, _, code := c.Run("", "store", "dump-page", dir, itoa(no), "-o", "json")
		if code == cli.ExitOK && strings.Contains(stdout, `"kind":"packed"`) {
			packed++
		}
	}
	require.Positive(t, packed)
	_, _, code := c.Run("", "store", "dump-page", dir, "100000")
	require.Equal(t, cli.ExitError, code)
	_, stderr, code := c.Run("", "store", "dump-log", filepath.Join(dir, "nowhere"))
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "a data directory")
}

func itoa(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}

// TestPairCommands runs commands that require a pair.
func TestPairCommands(t *testing.T) {
	p, c := clitest.StartNodes(t, false)
	c.OK("publish", "orders", "one", "--create")
	before := clitest.ActiveAddress(t, c)
	require.Equal(t, false, c.Lines("switchover")[0]["already"])
	after := clitest.ActiveAddress(t, c)
	require.NotEqual(t, before, after)
	require.Equal(t, "one\n", c.OK("consume", "orders", "-f", "--count", "1"))
	pair, _ := c.Lines("status")[0]["pair"].(map[string]any)
	require.ElementsMatch(t, []any{"a", "b"}, pair["in_sync"])

	require.NoError(t, p.Find(after).Kill())
	require.InDelta(t, 2, c.Lines("publish", "orders", "two")[0]["sequence"], 0)
	require.Contains(t, c.OK("status"), "connection refused")
	require.NoError(t, p.Find(after).Start())
}

// The error for a mistyped command suggests the most similar command, in groups and at the top level.
func TestSuggestsSimilarCommand(t *testing.T) {
	c := clitest.CLI{T: t}
	for meant, args := range map[string][]string{
		"status": {"statsu"}, "purge": {"queue", "prge"}, "resize": {"store", "reszie"}, "voters": {"pair", "votesr"},
		"list": {"job", "lst"},
	} {
		_, stderr, code := c.Run("", args...)
		require.Equal(t, cli.ExitUsage, code)
		require.Contains(t, stderr, meant, args)
		require.Contains(t, strings.ToLower(stderr), "you mean", args)
	}
}
