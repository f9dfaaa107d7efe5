// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// move and remove affect only the selected messages.
func TestMoveAndRemove(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	c.OK("queue", "create", "from")
	c.OK("queue", "create", "to")
	for _, body := range []string{"one", "two", "three", "four", "five"} {
		c.OK("publish", "from", body)
	}
	moved := func(moved, skipped float64, args ...string) {
		t.Helper()
		require.Equal(t, []map[string]any{{"moved": moved, "skipped": skipped}},
			c.Lines(append([]string{"queue", "move"}, args...)...))
	}
	moved(3, 0, "from", "--to", "to", "--sequence", "1,3-4")
	moved(0, 1, "from", "--to", "to", "--sequence", "1")
	moved(0, 1, "to", "--sequence", "1") // message 1 is not a dead letter
	require.InDelta(t, 1, c.Lines("queue", "remove", "from", "--sequence", "2")[0]["messages"], 0)
	require.InDelta(t, 0, c.Lines("queue", "remove", "from", "--sequence", "1-2", "--yes")[0]["messages"], 0)
	moved(1, 0, "to", "--to", "from", "-s", "default", "--sequence", "2")
	for _, refused := range []struct {
		want string
		code int
		args []string
	}{
		{"sequence", cli.ExitUsage, []string{"move", "from", "--to", "to"}},
		{"start at 1", cli.ExitUsage, []string{"move", "from", "--to", "to", "--sequence", "0"}},
		{"or a range", cli.ExitUsage, []string{"remove", "from", "--sequence", "5-3"}},
		{"last one is", cli.ExitError, []string{"remove", "from", "--sequence", "99"}},
		{"queue not found", cli.ExitError, []string{"move", "from", "--to", "none", "--sequence", "5"}},
	} {
		_, stderr, code := c.Run("", append([]string{"queue"}, refused.args...)...)
		require.Equal(t, refused.code, code, "%v: %s", refused.args, stderr)
		require.Contains(t, stderr, refused.want, refused.args)
	}
}

// queue list passes sort order, filter and page to the node.
func TestListSortsAndFilters(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	for _, name := range []string{"a", "b", "c"} {
		c.OK("queue", "create", name)
	}
	c.OK("publish", "b", "x")
	names := func(args ...string) (names []string) {
		var list []map[string]any
		text := c.OK(append([]string{"queue", "list", "--output", "json"}, args...)...)
		require.NoError(t, json.Unmarshal([]byte(text), &list), text)
		for _, q := range list {
			names = append(names, q["name"].(string))
			require.Contains(t, q["activity"], "published_per_second")
		}
		return names
	}
	require.Equal(t, []string{"b", "a", "c"}, names("--sort", "messages", "--descending"))
	require.Equal(t, []string{"b", "a", "c"}, names("--sort", "messages"), "the fullest first")
	require.Equal(t, []string{"a", "c", "b"}, names("--sort", "messages", "--descending=false"))
	require.Equal(t, []string{"a", "b", "c"}, names("--sort", "name"))
	require.Equal(t, []string{"b"}, names("--sort", "age", "--limit", "1"))
	require.Equal(t, []string{"c"}, names("--contains", "C"))
	text := c.OK("queue", "list", "--activity", "--limit", "2")
	require.Contains(t, text, "Published/s")
	require.Contains(t, text, "2 of 3")
	require.Contains(t, text, "--offset 2")
	_, stderr, code := c.Run("", "queue", "list", "--sort", "weight")
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, stderr, "name, messages")
}
