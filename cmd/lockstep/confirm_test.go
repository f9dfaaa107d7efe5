package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// answering runs a command at a terminal where somebody types.
func (c cli) answering(typed string, args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 60*time.Second)
	defer cancel()
	var out, err bytes.Buffer
	code = execute(ctx, args, &environment{
		stdin: strings.NewReader(typed), stdout: &out, stderr: &err, terminal: func() bool { return true },
		lookup: func(name string) (string, bool) { return c.addr, name == envAddr && c.addr != "" },
	})
	return out.String(), err.String(), code
}

// TestAsksBeforeMessagesGo: on a terminal, and only if there are messages, and not with --yes. Scripts are not asked.
func TestAsksBeforeMessagesGo(t *testing.T) {
	_, c := startNodes(t, true)
	fill := func() {
		c.ok("queue", "create", "q", "-s", "one", "-s", "two", "--if-not-exists")
		c.ok("publish", "q", "1", "2", "3")
	}
	fill()
	for _, args := range [][]string{
		{"queue", "purge", "q"},
		{"queue", "purge", "q", "-s", "one"},
		{"queue", "delete", "q"},
		{"subscription", "delete", "q", "two"},
	} {
		for _, no := range []string{"", "\n", "n\n", "nonsense\n"} {
			_, stderr, code := c.answering(no, args...)
			require.Equal(t, exitError, code, args)
			require.Contains(t, stderr, "3 messages would be gone for good. [y/N]", args)
			require.Contains(t, stderr, "nothing was done", args)
		}
	}
	require.InDelta(t, 3, c.lines("queue", "show", "q")[0]["messages"], 0)

	stdout, stderr, code := c.answering("y\n", "queue", "purge", "q", "-s", "one")
	require.Equal(t, exitOK, code, stderr)
	require.Contains(t, stdout, "purged 3 messages")
	_, stderr, code = c.answering("", "queue", "purge", "q", "-s", "one")
	require.Equal(t, exitOK, code, "there are none left")
	require.NotContains(t, stderr, "[y/N]")
	_, stderr, code = c.answering("", "queue", "delete", "q", "--yes")
	require.Equal(t, exitOK, code)
	require.NotContains(t, stderr, "[y/N]")
	fill()
	c.ok("queue", "purge", "q")
	fill()
	c.ok("queue", "delete", "q")

	_, stderr, code = c.answering("n\n", "store", "drop-old")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "cannot be brought back")
	_, _, code = c.answering("yes\n", "store", "drop-old")
	require.Equal(t, exitOK, code)
}

// TestSubscriptionList lists what `queue show` shows below a queue.
func TestSubscriptionList(t *testing.T) {
	_, c := startNodes(t, true)
	c.ok("queue", "create", "q", "-s", "one", "-s", "two")
	c.ok("publish", "q", "1")
	c.ok("queue", "purge", "q", "-s", "one")
	require.Contains(t, c.ok("subscription", "list", "q"), "two")
	lines := c.lines("subscription", "list", "q")
	require.Len(t, lines, 2)
	require.InDelta(t, 1, lines[1]["backlog"], 0)
	_, stderr, code := c.run("", "subscription", "list", "nothing")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "nothing")
}

// TestDidYouMean: a mistyped command is answered with the one that is most like it, in groups as at the top.
func TestDidYouMean(t *testing.T) {
	c := cli{t: t}
	for meant, args := range map[string][]string{
		"status": {"statsu"}, "purge": {"queue", "prge"}, "resize": {"store", "reszie"}, "voters": {"pair", "votesr"},
		"list": {"job", "lst"},
	} {
		_, stderr, code := c.run("", args...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, meant, args)
		require.Contains(t, strings.ToLower(stderr), "did you mean", args)
	}
}

// TestLongLine: a line that is longer than a message can be is refused in words.
func TestLongLine(t *testing.T) {
	_, c := startNodes(t, true)
	_, stderr, code := c.run("short\n"+strings.Repeat("x", maxLineBytes+1), "publish", "q", "--create")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "line 2 is longer than 64.0 MiB")
	require.NotContains(t, stderr, "bufio")
}
