// SPDX-License-Identifier: Apache-2.0

package message_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

func TestBrowseFilter(t *testing.T) {
	t.Parallel()
	_, c := clitest.StartNodes(t, true)
	for _, id := range []string{"4711", "4712", "4711"} {
		c.OK("publish", "orders", "--create", `{"customer": {"id": "`+id+`"}}`, "-p", "region=eu")
	}
	c.OK("publish", "orders", "no JSON", "-p", "region=us")
	browse := func(args ...string) (sequences []any) {
		for _, m := range c.Lines(append([]string{"browse", "orders"}, args...)...) {
			sequences = append(sequences, m["sequence"])
		}
		return sequences
	}
	byID, byRegion := `body.customer.id == "4711"`, `properties.region == "us"`
	require.Equal(t, []any{1.0, 3.0}, browse("--filter", byID))
	require.Equal(t, []any{3.0, 1.0}, browse("--filter", byID, "--newest"))
	require.Equal(t, []any{4.0, 3.0}, browse("--newest", "--limit", "2"))
	require.Equal(t, []any{2.0, 3.0}, browse("--from", "2", "--before", "4"))
	require.Equal(t, []any{4.0}, browse("--filter", byRegion))
	require.Empty(t, browse("--filter", "false"))
	_, stderr, code := c.Run("", "browse", "orders", "--filter", "body.x =")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "1:8:")

	_, stderr, code = c.Run("", "queue", "move", "orders", "--filter", "true", "--sequence", "1")
	require.Equal(t, cli.ExitUsage, code, stderr)
	_, stderr, code = c.Run("", "queue", "remove", "orders", "--from", "1", "--sequence", "1")
	require.Equal(t, cli.ExitUsage, code, stderr)
	c.OK("queue", "create", "other")
	c.OK("queue", "move", "orders", "--to", "other", "--filter", byID, "--from", "2")
	require.Equal(t, []any{1.0, 2.0, 4.0}, browse())
	c.OK("queue", "remove", "orders", "--filter", `body == null`, "--yes")
	require.Equal(t, []any{1.0, 2.0}, browse())
	c.OK("queue", "replay-dead", "orders", "--to", "other", "--filter", `body.customer.id == "4712"`)
	require.Equal(t, []any{1.0}, browse())
}
