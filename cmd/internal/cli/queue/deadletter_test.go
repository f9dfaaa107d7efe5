// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// create and alter set the dead-letter fields. show and list display these fields. alter keeps fields that are not
// given.
func TestDeadLetterConfig(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "dead")
	q := c.Lines("queue", "create", "orders", "--max-deliveries", "3", "--dead-letter", "dead", "--max-bytes", "1MiB")[0]
	require.InDelta(t, 3, q["max_deliveries"], 0)
	require.Equal(t, "dead", q["dead_letter"])
	table := c.OK("queue", "show", "orders")
	require.Contains(t, table, "deliveries per message: 3")
	require.Regexp(t, `(?m)^Dead letters +moved to dead$`, table)
	require.Regexp(t, `(?m)^Dead letters +discarded$`, c.OK("queue", "show", "dead"))
	require.NotContains(t, c.Lines("queue", "show", "dead")[0], "max_deliveries")

	q = c.Lines("queue", "alter", "orders", "--max-messages", "9")[0]
	require.InDelta(t, 3, q["max_deliveries"], 0)
	require.Equal(t, "dead", q["dead_letter"])
	q = c.Lines("queue", "alter", "orders", "--max-deliveries", "5")[0]
	require.InDelta(t, 5, q["max_deliveries"], 0)
	require.Equal(t, "dead", q["dead_letter"])
	require.InDelta(t, 9, q["max_messages"], 0)
	require.InDelta(t, 1<<20, q["max_bytes"], 0)

	for _, refused := range []struct {
		want string
		args []string
	}{
		{"maximum is 1000000", []string{"queue", "alter", "orders", "--max-deliveries", "1000001"}},
		{"nothing", []string{"queue", "alter", "orders", "--dead-letter", "nothing"}},
		{"nothing", []string{"queue", "create", "other", "--dead-letter", "nothing"}},
		{"dead-letter cycle", []string{"queue", "alter", "orders", "--dead-letter", "orders"}},
		{"dead-letter cycle", []string{"queue", "alter", "dead", "--dead-letter", "orders"}},
		{"is the dead-letter queue", []string{"queue", "delete", "dead"}},
	} {
		_, stderr, code := c.Run("", refused.args...)
		require.Equal(t, cli.ExitError, code, "%v: %s", refused.args, stderr)
		require.Contains(t, stderr, refused.want, refused.args)
	}
	q = c.Lines("queue", "show", "orders")[0]
	require.InDelta(t, 5, q["max_deliveries"], 0)
	require.Equal(t, "dead", q["dead_letter"])

	q = c.Lines("queue", "alter", "orders", "--max-deliveries", "0", "--dead-letter", "")[0]
	require.NotContains(t, q, "max_deliveries")
	require.NotContains(t, q, "dead_letter")
	c.OK("queue", "delete", "dead")
}

// A message that is rejected, or nacked too often, becomes a dead letter, and can be moved back.
func TestDeadLetters(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "dead")
	c.OK("queue", "create", "orders", "--max-deliveries", "2", "--dead-letter", "dead")
	c.OK("publish", "orders", "one", "--subject", "order")
	require.Equal(t, "one\n", c.OK("consume", "orders", "--reject", "-f", "-n", "1"))
	c.OK("publish", "orders", "two", "--subject", "order")
	for range 2 {
		require.Equal(t, "two\n", c.OK("consume", "orders", "--no-ack", "-f", "-n", "1"))
	}
	c.OK("publish", "orders", "three")
	require.Equal(t, "three\n", c.OK("consume", "orders", "-f", "-n", "1"))
	require.Eventually(t, func() bool { return len(c.Lines("browse", "dead")) == 2 }, time.Minute,
		10*time.Millisecond)

	letters := c.Lines("browse", "dead")
	require.Equal(t, "one", letters[0]["body"])
	letter, is := letters[0]["dead_letter"].(map[string]any)
	require.True(t, is, letters[0])
	moved, is := letter["moved_at"].(string)
	require.True(t, is, letter)
	at, err := time.Parse(time.RFC3339, moved)
	require.NoError(t, err)
	require.WithinDuration(t, time.Now(), at, time.Minute)
	delete(letter, "moved_at")
	require.Equal(t, map[string]any{
		"queue": "orders", "subscription": "default", "sequence": 1.0, "reason": "rejected", "deliveries": 1.0,
	}, letter)
	require.Equal(t, "order", letters[0]["subject"])
	letter, is = letters[1]["dead_letter"].(map[string]any)
	require.True(t, is, letters[1])
	delete(letter, "moved_at")
	require.Equal(t, map[string]any{
		"queue": "orders", "subscription": "default", "sequence": 2.0, "reason": "max-deliveries", "deliveries": 2.0,
	}, letter)

	replayed := func(moved, skipped float64, args ...string) {
		t.Helper()
		require.Equal(t, map[string]any{"moved": moved, "skipped": skipped},
			c.Lines(append([]string{"queue", "replay-dead", "dead"}, args...)...)[0])
	}
	c.OK("publish", "dead", "plain")
	replayed(1, 0, "--from", "2", "--limit", "1")
	require.Equal(t, "two\n", c.OK("consume", "orders", "-f", "-n", "1"))
	replayed(1, 1)
	require.Equal(t, "one\n", c.OK("consume", "orders", "-f", "-n", "1"))
	replayed(1, 0, "--to", "orders", "--subscription", "default")
	require.Equal(t, "plain\n", c.OK("consume", "orders", "-f", "-n", "1"))
	require.Empty(t, c.Lines("browse", "dead"))

	c.OK("publish", "orders", "a", "b", "--subject", "poison")
	c.OK("publish", "orders", "c")
	c.OK("consume", "orders", "--reject", "-f", "--max", "3")
	require.Eventually(t, func() bool { return len(c.Lines("browse", "dead")) == 3 }, time.Minute,
		10*time.Millisecond)
	replayed(1, 0, "--filter", `subject == ""`)
	require.Equal(t, "c\n", c.OK("consume", "orders", "-f", "-n", "1"))
	replayed(0, 0, "--filter", "size > 1")
	for _, refused := range [][]string{
		{"queue", "replay-dead", "dead", "--filter", "nothing == 1"},
		{"queue", "replay-dead", "nothing"},
		{"queue", "replay-dead", "dead", "-s", "nothing"},
		{"queue", "replay-dead", "dead", "--to", "nothing"},
	} {
		_, stderr, code := c.Run("", refused...)
		require.Equal(t, cli.ExitError, code, "%v: %s", refused, stderr)
		require.Contains(t, stderr, "nothing", refused)
	}
}

// After some messages were moved, a repetition with the same --limit can move more messages than the limit.
func TestReplayFailsWithLimit(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "dead", "--partitions", "2")
	c.OK("queue", "create", "full", "--max-messages", "1")
	replay := func(args ...string) string {
		c.OK("publish", "dead#0/2", "one")
		c.OK("publish", "dead#1/2", "two")
		_, stderr, code := c.Run("", append([]string{"queue", "replay-dead", "dead", "--to", "full"}, args...)...)
		require.Equal(t, cli.ExitError, code)
		c.OK("queue", "purge", "full", "--yes")
		return stderr
	}
	require.NotContains(t, replay(), "--limit")
	require.Contains(t, replay("--limit", "2"), "--limit")
}
