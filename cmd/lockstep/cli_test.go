package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// TestUsage: what makes no sense has exit code 2 and says where to look.
func TestUsage(t *testing.T) {
	c := cli{t: t}
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
		{"store", "backups", "--verify"},
		{"store", "settings"},
		{"store", "settings", "get", "page-size"},
		{"store", "settings", "set", "page-size-current", "4096"},
		{"store", "settings", "set", "resize-on-startup", "maybe"},
		{"job"},
		{"job", "put", "j"},
		{"job", "put", "j", "--schedule", "@daily", "--kind", "dance"},
	} {
		stdout, stderr, code := c.run("", args...)
		require.Equal(t, exitUsage, code, "%v: %s", args, stderr)
		require.Empty(t, stdout, args)
		require.Contains(t, stderr, "--help", args)
	}
}

// TestHelp: every command has a help text with an example, and says what it is in one line.
func TestHelp(t *testing.T) {
	a := &app{environment: &environment{lookup: func(string) (string, bool) { return "", false }}}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		require.NotEmpty(t, cmd.Short, cmd.CommandPath())
		if cmd.HasSubCommands() {
			for _, sub := range cmd.Commands() {
				walk(sub)
			}
			return
		}
		require.NotEmpty(t, cmd.Example, cmd.CommandPath())
		require.Contains(t, cmd.Example, cmd.CommandPath(), cmd.CommandPath())
	}
	walk(a.rootCommand())
	require.Contains(t, cli{t: t}.ok("--help"), "lockstep demo")
}

func TestVersion(t *testing.T) {
	c := cli{t: t}
	require.Contains(t, c.ok("version"), "lockstep "+versionName())
	require.Equal(t, versionName(), c.lines("version")[0]["version"])
	require.Contains(t, c.ok("completion", "bash"), "lockstep")
}

// TestNobodyThere: the error names the addresses and how to change them.
func TestNobodyThere(t *testing.T) {
	c := cli{t: t, addr: "127.0.0.1:1"}
	_, stderr, code := c.run("", "queue", "list", "--timeout", "200ms")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "127.0.0.1:1")
	require.Contains(t, stderr, "refused")
	stdout, stderr, code := c.run("", "status")
	require.Equal(t, exitError, code)
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
	} {
		began := time.Now()
		_, stderr, code = c.run("", args...)
		require.Equal(t, exitError, code, args)
		require.Equal(t, 1, strings.Count(stderr, "127.0.0.1:1"), "%v: %s", args, stderr)
		require.Contains(t, stderr, "connection refused")
		require.NotContains(t, stderr, "deadline")
		require.Less(t, time.Since(began), defaultTimeout/2, "%v: no waiting helps", args)
	}
}

// TestGivenOnlyTheStandby: the commands follow what the standby says.
func TestGivenOnlyTheStandby(t *testing.T) {
	p, c := startNodes(t, false)
	_, standby := inSync(t, p, c)
	c.addr = standby.Address
	c.ok("queue", "create", "q")
	c.ok("publish", "q", "one", "two")
	require.Equal(t, "one\n", c.ok("browse", "q", "--bodies", "-n", "1"))
	require.Equal(t, "one\ntwo\n", c.ok("consume", "q", "--count", "2"))
	require.Contains(t, c.ok("switchover", "--to", standby.Name), "is active now")
}

// TestCommands: the life of some queues on one node, and then its files.
func TestCommands(t *testing.T) {
	p, c := startNodes(t, true)

	require.Contains(t, c.ok("queue", "create", "orders", "--max-messages", "1000"), "created queue orders")
	_, stderr, code := c.run("", "queue", "create", "orders")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "orders")
	require.Contains(t, c.ok("queue", "create", "orders", "--if-not-exists"), "there already")
	c.ok("queue", "create", "prices", "-s", "billing", "-s", "audit")

	require.Contains(t, c.ok("publish", "orders", "one", "two", "--property", "kind=test"),
		"published 2 messages to orders, sequences 1 to 2")
	stdout, stderr, code := c.run("three\nfour\n", "publish", "orders", "-o", "json")
	require.Equal(t, exitOK, code, stderr)
	require.Equal(t, 2, strings.Count(stdout, `"queue":"orders"`))
	file := filepath.Join(t.TempDir(), "body")
	require.NoError(t, os.WriteFile(file, []byte{0xff, 0, 1}, 0o600))
	c.ok("publish", "orders", "--file", file)
	_, stderr, code = c.run("", "publish", "missing", "x")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "missing")
	require.Contains(t, c.ok("publish", "made", "x", "--create"), "published 1 message to made, sequence 1\n")

	browsed := c.lines("browse", "orders")
	require.Len(t, browsed, 5)
	require.Equal(t, "one", browsed[0]["body"])
	require.Equal(t, map[string]any{"kind": "test"}, browsed[0]["properties"])
	require.Equal(t, "/wAB", browsed[4]["body_base64"])
	table := c.ok("browse", "orders", "--from", "2", "--limit", "2")
	require.Contains(t, table, "two")
	require.Contains(t, table, "three")
	require.NotContains(t, table, "four")
	require.Equal(t, "one\ntwo\n", c.ok("browse", "orders", "--bodies", "-n", "2"))

	require.Equal(t, "one\ntwo\n", c.ok("consume", "orders", "--count", "2", "--no-ack"))
	require.Equal(t, "one\ntwo\n", c.ok("consume", "orders", "--count", "2"))
	require.Len(t, c.lines("consume", "orders", "--wait", "300ms"), 3)
	require.Empty(t, c.ok("consume", "orders", "--wait", "100ms"))

	c.ok("publish", "prices", "1", "2", "3")
	require.Contains(t, c.ok("subscription", "create", "prices", "late", "--start", "earliest"), "3 messages to read")
	require.Contains(t, c.ok("queue", "purge", "prices", "-s", "audit"), "purged 3 messages")
	show := c.lines("queue", "show", "prices")[0]
	require.InDelta(t, 3, show["messages"], 0)
	require.Len(t, show["subscriptions"], 3)
	require.Contains(t, c.ok("queue", "show", "prices"), "billing")
	c.ok("subscription", "delete", "prices", "late")
	require.Contains(t, c.ok("queue", "alter", "orders", "--max-bytes", "1MiB"), "messages: 1,000, bytes: 1.0 MiB")
	_, stderr, code = c.run("", "queue", "delete", "prices", "--if-empty")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "prices")
	var queues []map[string]any
	require.NoError(t, json.Unmarshal([]byte(c.ok("queue", "list", "-o", "json")), &queues))
	require.Len(t, queues, 3)
	require.Contains(t, c.ok("queue", "delete", "made"), "deleted queue made with 1 message\n")
	require.Contains(t, c.ok("queue", "list", "or"), "orders")

	status := c.lines("status")[0]
	node, _ := status["nodes"].([]any)[0].(map[string]any)
	require.Equal(t, "active-alone", node["role"])
	require.Contains(t, c.ok("status"), p.Addresses()[0])
	require.Contains(t, c.ok("checkpoint"), "checkpoint")
	require.Contains(t, c.ok("store", "check"), "is sound")
	online := c.lines("store", "digest")[0]

	_, stderr, code = c.run("", "store", "check", filepath.Join(p.Nodes[0].Dir, "data"))
	require.Equal(t, exitError, code, "the node runs")
	require.Contains(t, stderr, "stop the node")
	require.NoError(t, p.Close())
	offlineCommands(t, c, filepath.Join(p.Nodes[0].Dir, "data"), online)
}

// offlineCommands look into the files of a stopped node that said online about its content.
func offlineCommands(t *testing.T, c cli, dir string, online map[string]any) {
	t.Helper()
	require.Contains(t, c.ok("store", "check", dir), "is sound: 3 messages")
	offline := c.lines("store", "digest", dir)[0]
	require.Equal(t, online["content"], offline["content"])
	meta := c.lines("store", "dump-meta", dir)[0]
	require.InDelta(t, 2048, meta["page_size"], 0)
	require.Contains(t, c.ok("store", "dump-meta", dir), "Checkpoint")

	log := c.lines("store", "dump-log", dir)
	require.Equal(t, "term-start", log[0]["kind"])
	last := log[len(log)-1]
	require.Empty(t, last["problem"])
	require.Len(t, c.lines("store", "dump-log", dir, "--limit", "2"), 3)
	text := c.ok("store", "dump-log", dir, "--from", "2")
	require.Contains(t, text, `"orders"`)
	require.Contains(t, text, "is whole")
	segments, err := filepath.Glob(filepath.Join(dir, "log", "*.seg"))
	require.NoError(t, err)
	require.NotEmpty(t, segments)
	require.Contains(t, c.ok("store", "dump-log", segments[0], "--messages"), `"orders"`, "a single file")

	packed := 0
	for no := 1; no < 40; no++ {
		stdout, _, code := c.run("", "store", "dump-page", dir, itoa(no), "-o", "json")
		if code == exitOK && strings.Contains(stdout, `"kind":"packed"`) {
			packed++
		}
	}
	require.Positive(t, packed)
	_, _, code := c.run("", "store", "dump-page", dir, "100000")
	require.Equal(t, exitError, code)
	_, stderr, code := c.run("", "store", "dump-log", filepath.Join(dir, "nowhere"))
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "not a data directory")
}

func itoa(n int) string {
	b, _ := json.Marshal(n)
	return string(b)
}

// TestPairCommands: what only a pair can do.
func TestPairCommands(t *testing.T) {
	p, c := startNodes(t, false)
	c.ok("publish", "orders", "one", "--create")
	before := activeAddress(t, c)
	require.Contains(t, c.ok("switchover"), "is active now")
	after := activeAddress(t, c)
	require.NotEqual(t, before, after)
	require.Equal(t, "one\n", c.ok("consume", "orders", "--count", "1"))
	require.Contains(t, c.ok("status"), "in sync: a and b")

	require.NoError(t, p.Find(after).Kill())
	require.Contains(t, c.ok("publish", "orders", "two"), "published 1 message to orders, sequence 2\n")
	require.Contains(t, c.ok("status"), "connection refused")
	require.NoError(t, p.Find(after).Start())
}

// activeAddress is the node that says it is active. Just after a switchover the new one still waits for its standby.
func activeAddress(t *testing.T, c cli) (address string) {
	t.Helper()
	require.Eventually(t, func() bool {
		var status statusJSON
		require.NoError(t, json.Unmarshal([]byte(c.ok("status", "-o", "json")), &status))
		for _, n := range status.Nodes {
			if n.Role == "active" || n.Role == "active-alone" {
				address = n.Address
			}
		}
		return address != ""
	}, 10*time.Second, 10*time.Millisecond)
	return address
}
