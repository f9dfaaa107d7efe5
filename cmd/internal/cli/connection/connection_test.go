// SPDX-License-Identifier: Apache-2.0

package connection_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

// The connections to both nodes are listed, with the state of a consumer. After a connection is closed, its
// consumer continues over another connection without loss.
func TestConnections(t *testing.T) {
	p, c := clitest.StartNodes(t, false)
	active, _ := clitest.InSync(t, p, c)
	c.OK("queue", "create", "orders")
	other, err := client.OpenWith(t.Context(), client.Options{Addresses: p.Addresses()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.Close()) })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	consumer, err := other.Consume(ctx, "orders", client.ConsumerOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { _ = consumer.Close() })
	c.OK("publish", "orders", "first")
	m, err := consumer.Receive(ctx)
	require.NoError(t, err)
	require.Equal(t, "first", string(m.Body))

	var found []map[string]any
	peers := 0
	var all []map[string]any
	text := c.OK("connection", "list", "--output", "json")
	require.NoError(t, json.Unmarshal([]byte(text), &all), text)
	for _, one := range all {
		if one["peer"] == true {
			peers++
		}
		for _, s := range one["streams"].([]any) {
			if stream := s.(map[string]any); stream["kind"] == "consume" {
				found = append(found, one)
				require.Equal(t, []any{"orders"}, stream["queues"])
				require.Equal(t, "default", stream["subscription"])
				require.InDelta(t, 1, stream["unacknowledged"], 0)
			}
		}
	}
	require.Len(t, found, 1)
	require.Equal(t, 1, peers)
	require.Equal(t, active.Name, found[0]["node"])
	require.Contains(t, found[0]["received"], "bytes_per_second")
	require.Contains(t, c.OK("connection", "list", "--queue", "orders"), "orders/default")
	require.Equal(t, "no connections\n", c.OK("connection", "list", "--queue", "none"))

	id := fmt.Sprint(found[0]["id"])
	require.Contains(t, c.OK("connection", "close", id, "--node", active.Name), "closed connection "+id+" of anonymous")
	c.OK("publish", "orders", "second")
	second, err := consumer.Receive(ctx)
	require.NoError(t, err)
	require.Equal(t, "second", string(second.Body), "over another connection")
	m.Ack()
	second.Ack()
	require.Eventually(t, func() bool {
		return c.Lines("queue", "show", "orders")[0]["messages"] == 0.0
	}, time.Minute, 20*time.Millisecond)
	for _, refused := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"x"}, cli.ExitUsage, "invalid connection ID"},
		{[]string{id}, cli.ExitError, "connection not found"},
		{[]string{id, "--node", "nobody"}, cli.ExitUsage, "no node in --addr"},
	} {
		_, stderr, code := c.Run("", append([]string{"connection", "close"}, refused.args...)...)
		require.Equal(t, refused.code, code, "%v: %s", refused.args, stderr)
		require.Contains(t, stderr, refused.want)
	}
}
