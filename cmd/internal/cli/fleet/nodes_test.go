// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/test/coordtest"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// awaitStatus waits until the state of the fleet fulfills a condition.
func awaitStatus(t *testing.T, c clitest.CLI, fulfilled func(v map[string]any) bool) {
	t.Helper()
	require.Eventually(t, func() bool {
		stdout, _, _ := c.Run("", "fleet", "status", "-o", "json")
		return strings.HasPrefix(stdout, "{") && fulfilled(decode(t, stdout))
	}, 2*time.Minute, 20*time.Millisecond)
}

// live returns a condition: the fleet has n pairs, which are live, and no problems.
func live(n int) func(v map[string]any) bool {
	return func(v map[string]any) bool {
		pairs := v["pairs"].([]any)
		for _, p := range pairs {
			if !p.(map[string]any)["live"].(bool) {
				return false
			}
		}
		return len(pairs) == n && len(v["problems"].([]any)) == 0
	}
}

// A standby shows and changes the directory. Rebuild and leave find the active of its pair.
func TestFleetCommandsThroughStandby(t *testing.T) {
	settings := maps.Clone(harness.SmallNodes())
	settings["fleet.pair"] = "a"
	_, c := clitest.StartNodesWith(t, false, settings)
	awaitStatus(t, c, live(1))
	c.OK("queue", "create", "q")
	var standby clitest.CLI
	for _, n := range c.Lines("status")[0]["nodes"].([]any) {
		if v := n.(map[string]any); v["role"] == "standby" {
			standby = clitest.CLI{T: t, Addr: v["address"].(string)}
		}
	}
	require.NotEmpty(t, standby.Addr)
	awaitStatus(t, standby, live(1)) // a new node has no copy yet
	standby.OK("fleet", "place", "q*", "--pair", "a")
	awaitStatus(t, standby, func(v map[string]any) bool {
		return v["queues"] == 1.0 && len(v["rules"].([]any)) == 1 && live(1)(v)
	})
	require.Equal(t, "q", standby.Lines("fleet", "queues")[0]["queue"])
	require.Equal(t, true, standby.Lines("fleet", "rebuild", "--yes")[0]["finished"])
	require.Equal(t, true, standby.Lines("fleet", "leave", "--yes")[0]["done"], "the last pair keeps its queues")
	awaitStatus(t, standby, func(v map[string]any) bool { return len(v["pairs"].([]any)) == 0 })
	c.OK("publish", "q", "after")
}

// The commands of docs/how-to/run-a-fleet.md work with two real nodes, each of which is a pair, and a real etcd.
func TestFleetCommandsWithNodes(t *testing.T) {
	etcd := coordtest.StartEtcd(t, t.TempDir(), "")
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	named := func(pair string) map[string]string {
		settings := maps.Clone(harness.SmallNodes())
		settings["fleet.pair"], settings["fleet.endpoints"] = pair, strings.Join(etcd.Endpoints(), ",")
		settings["fleet.labels"] = "name=" + pair
		return settings
	}
	_, a := clitest.StartNodesWith(t, true, named("a"))
	_, b := clitest.StartNodesWith(t, true, named("b"))
	both := clitest.CLI{T: t, Addr: a.Addr + "," + b.Addr}
	awaitStatus(t, a, live(2))
	awaitStatus(t, b, live(2))

	a.OK("fleet", "place", "orders.*", "--pair", "b")
	b.OK("fleet", "place", "invoices.*", "--label", "name=a")
	a.OK("queue", "create", "orders.eu")
	a.OK("queue", "create", "invoices.eu")
	queues := func(v map[string]any) bool { return v["queues"] == 2.0 }
	awaitStatus(t, a, queues) // pair a knows the owner of both
	a.OK("publish", "orders.eu", "1", "2", "3")
	require.Equal(t, "1\n2\n3\n", b.OK("consume", "orders.eu", "--count", "3"))
	pairOf := func() map[string]any {
		var list []map[string]any
		require.NoError(t, json.Unmarshal([]byte(b.OK("queue", "list", "--output", "json")), &list))
		pairs := map[string]any{}
		for _, v := range list {
			pairs[v["name"].(string)] = v["pair"]
		}
		return pairs
	}
	require.Equal(t, map[string]any{"invoices.eu": "a", "orders.eu": "b"}, pairOf())
	awaitStatus(t, b, queues)
	owners := map[string]any{}
	for _, v := range b.Lines("fleet", "queues", "--match", "*.eu") {
		owners[v["queue"].(string)] = v["pair"]
	}
	require.Equal(t, map[string]any{"invoices.eu": "a", "orders.eu": "b"}, owners)
	require.InDelta(t, 1, a.Lines("fleet", "drain", "b")[0]["queues"], 0)
	a.OK("fleet", "undrain", "b")

	a.OK("publish", "invoices.eu", "5", "6")
	moved := a.Lines("fleet", "move", "invoices.eu", "--to", "b", "--wait")[0]
	require.Equal(t, "done", moved["phase"])
	require.Equal(t, map[string]any{"invoices.eu": "b", "orders.eu": "b"}, pairOf())
	require.Equal(t, "5\n", b.OK("consume", "invoices.eu", "--count", "1"))
	require.Equal(t, "done", b.Lines("fleet", "move", "invoices.eu", "--to", "a", "--wait")[0]["phase"])
	require.Equal(t, "6\n", b.OK("consume", "invoices.eu", "--count", "1"))
	require.Len(t, a.Lines("fleet", "moves"), 2)
	_, _, code := a.Run("", "fleet", "move", "--cancel", fmt.Sprint(moved["epoch"]))
	require.Equal(t, cli.ExitError, code, "the move has ended")

	loseDirectory(t, etcd.Endpoints())
	awaitStatus(t, a, func(v map[string]any) bool { return v["problem"] == "lost" })
	awaitStatus(t, b, func(v map[string]any) bool { return v["problem"] == "lost" })
	b.OK("publish", "orders.eu", "4")
	_, _, code = a.Run("", "fleet", "rebuild", "--yes", "--pairs", "a,b")
	require.Equal(t, cli.ExitError, code, "pair b is missing")
	v := both.Lines("fleet", "rebuild", "--yes", "--pairs", "a,b")[0]
	require.Equal(t, true, v["finished"])
	awaitStatus(t, a, live(2))
	awaitStatus(t, a, queues)
	require.Equal(t, "4\n", a.OK("consume", "orders.eu", "--count", "1"))

	_, _, code = b.Run("", "fleet", "leave", "--yes")
	require.Equal(t, cli.ExitError, code, "the pair has a queue")
	a.OK("queue", "delete", "orders.eu", "--yes")
	require.Equal(t, true, b.Lines("fleet", "leave", "--yes")[0]["done"])
	awaitStatus(t, a, live(1))
}

// All queues of a real pair are moved to the other one, while a queue that cannot move remains.
func TestDrainWithNodes(t *testing.T) {
	etcd := coordtest.StartEtcd(t, t.TempDir(), "")
	t.Cleanup(func() { require.NoError(t, etcd.Close()) })
	named := func(pair string) map[string]string {
		settings := maps.Clone(harness.SmallNodes())
		settings["fleet.pair"], settings["fleet.endpoints"] = pair, strings.Join(etcd.Endpoints(), ",")
		return settings
	}
	_, a := clitest.StartNodesWith(t, true, named("a"))
	_, b := clitest.StartNodesWith(t, true, named("b"))
	awaitStatus(t, a, live(2))
	awaitStatus(t, b, live(2))
	a.OK("fleet", "place", "*", "--pair", "b")
	for _, name := range []string{"dead", "invoices", "orders{1}", "lines{1}"} {
		a.OK("queue", "create", name)
		a.OK("publish", name, "1", "2")
	}
	a.OK("queue", "alter", "invoices", "--dead-letter", "dead")
	b.OK("queue", "create", "policy.dead")
	b.OK("policy", "put", "x*", "--dead-letter", "policy.dead")
	awaitStatus(t, a, func(v map[string]any) bool { return v["queues"] == 5.0 })

	plan := a.Lines("fleet", "drain", "b", "--move", "--dry-run")[0]
	require.Empty(t, plan["moves"])
	require.Equal(t, "placement-rule", plan["left"].([]any)[0].(map[string]any)["reason"])
	a.OK("fleet", "place", "*", "--delete")
	stdout, stderr, code := a.Run("", "fleet", "drain", "b", "--move", "--yes", "-o", "json")
	require.Equal(t, cli.ExitError, code, stderr)
	v := decode(t, stdout)
	require.InDelta(t, 1, v["queues"], 0, stdout)
	require.Equal(t, "policy-dead-letter", v["left"].([]any)[0].(map[string]any)["reason"])
	for _, name := range []string{"dead", "invoices", "orders{1}", "lines{1}"} {
		require.Equal(t, "1\n2\n", b.OK("consume", name, "--count", "2"))
		require.Contains(t, a.OK("queue", "list"), name)
	}
	b.OK("policy", "delete", "x*")
	require.InDelta(t, 0, a.Lines("fleet", "drain", "b", "--move", "--yes", "--wait")[0]["queues"], 0)
	a.OK("fleet", "undrain", "b")
	require.Empty(t, a.Lines("fleet", "rebalance", "--yes")[0]["moves"], "the queues are empty")
	stdout, _, _ = a.Run("", "fleet", "upgrade", "--version", "99.0.0", "-o", "json")
	require.Len(t, decode(t, stdout)["nodes"], 2)
	require.Equal(t, "upgrade", decode(t, stdout)["action"])
}

// loseDirectory deletes all keys.
func loseDirectory(t *testing.T, endpoints []string) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: endpoints, Logger: zap.NewNop()})
	require.NoError(t, err)
	_, err = client.Delete(t.Context(), "", clientv3.WithPrefix())
	require.NoError(t, err)
	require.NoError(t, client.Close())
}
