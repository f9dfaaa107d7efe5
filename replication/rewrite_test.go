// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// A standby that rewrites its page file applies nothing, but still acknowledges. It detects a broken connection
// immediately and reconnects; afterwards it applies everything once.
func TestConnectionLostDuringRewrite(t *testing.T) { synctest.Test(t, testConnectionLostDuringRewrite) }

func testConnectionLostDuringRewrite(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	a.lead(1, 1, nil)
	b.follow(a)
	a.createQueue()
	a.sync(b)
	a.publish(a.queueID, 200, 500, 4)

	// The rewrite hangs before it writes to the new file.
	hangs, resume := make(chan struct{}), make(chan struct{})
	var once, free sync.Once
	b.fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpWrite && strings.HasSuffix(op.Name, "page.db_new") {
			once.Do(func() { close(hangs) })
			<-resume
		}
		return nil
	})
	defer free.Do(func() { close(resume) })
	var rewriting sync.WaitGroup
	rewriting.Go(func() {
		if _, err := b.store.Maintenance().Rewrite(context.WithoutCancel(t.Context()),
			rewrite.Options{PageSize: 8192}); err != nil {
			t.Errorf("rewrite: %v", err)
		}
	})
	<-hangs
	before := b.store.Applied()
	a.publish(a.queueID, 100, 500, 4) // each one is acknowledged by the standby
	b.clearEvents()
	a.clearEvents()
	w.net.Reset("a")
	await(b, lost(replication.LostReset))
	await[replication.FollowerConnected](b, nil)
	a.sync(b)
	a.publish(a.queueID, 100, 500, 4)
	require.Equal(t, before, b.store.Applied())
	for _, e := range b.seen() {
		if e, ok := e.(replication.FollowerLost); ok {
			require.NotEqual(t, replication.LostSilence, e.Cause, "it was detected immediately")
		}
	}
	free.Do(func() { close(resume) })
	rewriting.Wait()
	requireEqual(a, b)
}
