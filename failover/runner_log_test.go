// SPDX-License-Identifier: Apache-2.0

package failover_test

import (
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/lockstep-mq/lockstep/failover"
)

// Each role change of a node, including the first one of a process, and each dropped standby are logged with their
// codes.
func TestEventsAreLogged(t *testing.T) { synctest.Test(t, testEventsAreLogged) }

func testEventsAreLogged(t *testing.T) {
	p, _ := memoryPair(t)
	core, logged := observer.New(zap.InfoLevel)
	p.logger = zap.New(core)
	p.both(failover.Settings{})
	// The announcement of b can arrive after b is in sync; then a writes the record again.
	p.nodes[0].await("record with both nodes", func(s failover.Status) bool { return len(s.Record.Nodes) == 2 })
	p.kill(1)
	p.nodes[0].awaitRole(failover.RoleActiveAlone)
	got := map[string][]string{}
	for _, e := range logged.All() {
		f := e.ContextMap()
		if f["code"] == nil {
			continue
		}
		require.Contains(t, f, "lsn")
		what := f["to"]
		if e.Message == "standby dropped" {
			what = fmt.Sprint("dropped ", f["standby"])
		}
		got[e.LoggerName] = append(got[e.LoggerName], fmt.Sprint(what, " ", f["code"]))
	}
	require.Equal(t, map[string][]string{
		"a.failover": {
			"RECOVERING start", "ACTIVATING new-pair", "ACTIVE_ALONE ready", "ACTIVE standby-in-sync",
			"BLOCKED connection-closed", "dropped b connection-closed", "ACTIVE_ALONE standby-dropped",
		},
		"b.failover": {"RECOVERING start", "CATCHING_UP record", "STANDBY in-sync"},
	}, got)
}
