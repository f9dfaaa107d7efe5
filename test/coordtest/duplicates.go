// SPDX-License-Identifier: Apache-2.0

package coordtest

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
)

// announce announces a process until the returned function is called.
func announce(t *testing.T, c failover.Coordinator, live failover.Live) func() {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Announce(ctx, live) }()
	ended := false
	end := func() {
		cancel()
		if ended {
			return
		}
		ended = true
		select {
		case err := <-done:
			if err != nil {
				t.Logf("Announce: %v", err) // the connection was closed
			}
		case <-time.After(bound):
			t.Error("Announce did not return when its context was canceled")
		}
	}
	t.Cleanup(end)
	return end
}

// isDuplicate reports whether the observed duplicate is the given process, and is not stale.
func isDuplicate(o failover.Observation, want failover.Live) bool {
	return o.Duplicate != nil && o.Duplicate.Live == want && !o.Duplicate.Stale
}

// testDuplicates verifies that two processes of one node observe each other while both are running, and that other
// nodes observe the node once.
func testDuplicates(t *testing.T, f Fixture) {
	a, b, other, reader := connect(t, f), connect(t, f), connect(t, f), connect(t, f)
	node := failover.NodeInfo{ID: uuid.New(), Name: "a", Address: "h:1"}
	first, second := failover.Live{Node: node, Process: "p1"}, failover.Live{Node: node, Process: "p2"}
	announce(t, other, failover.Live{Node: failover.NodeInfo{ID: uuid.New(), Name: "b", Address: "h:2"}, Process: "p1"})
	announce(t, a, first)
	o := Await(t, a, "both nodes", func(o failover.Observation) bool {
		return len(o.Live) == 2 &&
			!o.LeaseUntil.IsZero()
	})
	require.Nil(t, o.Duplicate)

	// The second process is started and stopped twice.
	for range 2 {
		end := announce(t, b, second)
		Await(t, a, "the second process at the first", func(o failover.Observation) bool { return isDuplicate(o, second) })
		Await(t, b, "the first process at the second", func(o failover.Observation) bool { return isDuplicate(o, first) })
		o = Await(t, other, "the newer process", func(o failover.Observation) bool {
			l, ok := o.LiveNode(node.ID)
			return ok && l == second && (f.Exact || len(o.Live) == 2)
		})
		require.Len(t, o.Live, 2)
		require.Nil(t, o.Duplicate)
		require.Nil(t, Await(t, reader, "the nodes",
			func(o failover.Observation) bool { return len(o.Live) == 2 }).Duplicate)
		until := Await(t, a, "a lease", func(o failover.Observation) bool { return isDuplicate(o, second) }).LeaseUntil
		Await(t, a, "lease that is renewed", func(o failover.Observation) bool {
			return o.LeaseUntil.After(until) &&
				isDuplicate(o, second)
		})

		end()
		Await(t, a, "no duplicate", func(o failover.Observation) bool { return o.Duplicate == nil })
		require.Nil(t, Await(t, b, "nothing", func(failover.Observation) bool { return true }).Duplicate)
		Await(t, other, "remaining process", func(o failover.Observation) bool {
			l, ok := o.LiveNode(node.ID)
			return ok && l == first
		})
	}
}

// testKilledDuplicate verifies that the key of a killed process is reported as a stale duplicate, not as a running
// process.
func testKilledDuplicate(t *testing.T, f Fixture) {
	node := failover.NodeInfo{ID: uuid.New(), Name: "a", Address: "h:1"}
	dead, live := failover.Live{Node: node, Process: "p2"}, failover.Live{Node: node, Process: "p1"}
	reader := connect(t, f)
	for attempt := 0; ; attempt++ {
		killed := f.Connect(t)
		end := announce(t, killed, dead)
		Await(t, reader, "first process", func(o failover.Observation) bool {
			l,
				ok := o.LiveNode(node.ID)
			return ok && l == dead
		})
		require.NoError(t, killed.Close()) // so that it cannot remove its key
		end()

		c := connect(t, f)
		ctx, cancel := context.WithTimeout(context.Background(), bound)
		seen := c.Watch(ctx)
		end = announce(t, c, live)
		left := false
		for o := range seen {
			if o.Duplicate != nil {
				require.Equal(t, dead, o.Duplicate.Live)
				require.True(t, o.Duplicate.Stale, "a killed process is reported as a running duplicate")
				left = true
			}
			if l, ok := o.LiveNode(node.ID); ok && l == live && o.Duplicate == nil {
				break
			}
		}
		require.NoError(t, ctx.Err(), "keys of a killed process remain")
		cancel()
		end()
		if left {
			return
		}
		require.False(t, f.Exact, "keys of a killed process were not observed")
		// on a slow machine, the lease may expire before the observation
		require.Less(t, attempt, 10, "keys of a killed process were never observed")
	}
}
