// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// Stop returns although the store applies nothing, as during a rewrite on a hung disk. Unapplied transactions have an
// unknown outcome and are applied in the next role.
func TestStopWhileNothingIsApplied(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	p := a.lead(1, 1, nil)
	b.follow(a)
	a.createQueue()
	a.sync(b)
	resumeA, rewroteA := hangRewrite(t, a)
	resumeB, rewroteB := hangRewrite(t, b)
	defer resumeB()
	defer resumeA()
	outcome := make(chan error, 1)
	require.NoError(t, p.Submit(t.Context(), payload(a.queueID, "", 0, []byte("x")),
		func(_ *txn.Result, err error) { outcome <- err }))
	require.Eventually(t, func() bool {
		return p.CommitLSN() > a.store.Applied().LSN && b.store.End() == a.store.End()
	}, waitLimit, time.Millisecond)

	a.stop() // must return
	b.stop()
	require.ErrorIs(t, <-outcome, replication.ErrOutcomeUnknown)
	require.Less(t, a.store.Applied().LSN, a.store.End().LSN)
	resumeA()
	resumeB()
	rewroteA.Wait()
	rewroteB.Wait()
	a.lead(a.config+1, 2, nil)
	b.follow(a)
	await[replication.ActiveReady](a, nil)
	a.sync(b)
	requireEqual(a, b)
}

// hangRewrite starts a rewrite of a node's page file that hangs before it writes to the new file, until resume is
// called.
func hangRewrite(t *testing.T, n *node) (resume func(), rewrote *sync.WaitGroup) {
	t.Helper()
	hangs, released := make(chan struct{}), make(chan struct{})
	var once sync.Once
	n.fault.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpWrite && strings.HasSuffix(op.Name, "page.db_new") {
			once.Do(func() { close(hangs) })
			<-released
		}
		return nil
	})
	rewrote = new(sync.WaitGroup)
	rewrote.Go(func() {
		if _, err := n.store.Maintenance().Rewrite(context.WithoutCancel(t.Context()),
			rewrite.Options{PageSize: 8192}); err != nil {
			t.Errorf("rewrite: %v", err)
		}
	})
	<-hangs
	return sync.OnceFunc(func() { close(released) }), rewrote
}
