// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// hold blocks operations of one kind on a node's log until release is called.
func (n *node) hold(kind faultfs.OpKind) (release func()) {
	gate := make(chan struct{})
	n.fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == kind && strings.Contains(op.Name, "/log/") {
			<-gate
		}
		return nil
	})
	release = sync.OnceFunc(func() {
		n.fault.SetHook(nil)
		close(gate)
	})
	n.w.t.Cleanup(release)
	return release
}

// longTimeouts sets the disk-stall and ack timeouts to an hour.
func longTimeouts(n *node) { n.tuning.DiskStallTimeout, n.tuning.AckTimeout = time.Hour, time.Hour }

// Records that the active acknowledged before it required the standby's acks must be durable on the standby before
// the standby may be added to in_sync (INV-3).
func TestSyncedOnlyWithCommitsOfActive(t *testing.T) {
	synctest.Test(t, testSyncedOnlyWithCommitsOfActive)
}

func testSyncedOnlyWithCommitsOfActive(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a", longTimeouts), w.node("b", longTimeouts)
	a.lead(1, 1, nil)
	b.follow(a)
	a.createQueue()
	await[replication.StandbyCaughtUp](a, nil)
	requireEqual(a, b)
	release := b.hold(faultfs.OpSync)
	a.publish(a.queueID, 20, 100, 4)
	commit := a.primary.CommitLSN()
	a.configure(func(c *replication.PrimaryConfig) { c.RequireStandby, c.Standby = true, b.member() })
	synced := func() bool {
		for _, e := range a.seen() {
			if _, is := e.(replication.StandbySynced); is {
				return true
			}
		}
		return false
	}
	pause(time.Minute)
	require.False(t, synced(), "synced without a sync")
	release()
	await[replication.StandbySynced](a, nil)
	require.GreaterOrEqual(t, b.store.Durable().LSN, commit)
}

// A batch is sent while the active writes it. A standby that reconnects at that moment is ahead of the active's log.
// It has not lost records and must not truncate any.
func TestStandbyMayBeAheadOfTheActivesLog(t *testing.T) {
	overBoth(t, func(t *testing.T, w *world) {
		a, b := w.node("a", longTimeouts), w.node("b", longTimeouts)
		a.lead(1, 1, nil)
		b.follow(a)
		a.createQueue()
		a.sync(b)
		requireEqual(a, b)
		end := a.store.End().LSN
		release := a.hold(faultfs.OpWrite)
		answer := make(chan error, 1)
		require.NoError(t, a.primary.Submit(t.Context(), payload(a.queueID, "", 0, []byte("x")),
			func(_ *txn.Result, err error) { answer <- err }))
		require.Eventually(t, func() bool {
			st := a.primary.Status().Standby
			return st != nil && st.Durable.LSN == end+1
		}, waitLimit, time.Millisecond, "the standby has it first")
		require.Equal(t, end, a.store.End().LSN)
		b.stop()
		a.clearEvents()
		b.follow(a)
		for range 60 {
			pause(time.Second)
			require.Equal(t, end+1, b.store.End().LSN)
		}
		release()
		require.NoError(t, <-answer)
		requireEqual(a, b)
		for _, e := range a.seen() {
			if e, is := e.(replication.StandbyLost); is {
				require.NotErrorIs(t, e.Err, replication.ErrLostRecords)
			}
		}
		names, err := b.disk.ReadDir("/data")
		require.NoError(t, err)
		require.False(t, containsPrefix(names, "cut-"), "%v", names)
	})
}
