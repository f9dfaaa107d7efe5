// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/txn"
)

var errHeld = errors.New("held")

// HoldWrites makes writes wait until they are released, for at most the limit. Exempt transactions do not wait.
func TestHoldWrites(t *testing.T) { synctest.Test(t, testHoldWrites) }

func testHoldWrites(t *testing.T) {
	w := newWorld(t)
	a := w.node("a")
	p := a.lead(1, 1, nil)
	a.createQueue()
	put, err := txn.Build(time.Now(), func(b *txn.Builder) { b.PutMeta("k", []byte("v")) })
	require.NoError(t, err)
	commit := func(ctx context.Context) error {
		_, err := p.Commit(ctx, put)
		return err
	}
	p.HoldWrites(errHeld, time.Second)
	end := a.store.End()
	began := time.Now()
	require.ErrorIs(t, commit(t.Context()), errHeld)
	require.Equal(t, time.Second, time.Since(began))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, commit(canceled), errHeld)
	require.Equal(t, end, a.store.End(), "nothing is logged")
	_, err = p.CommitExempt(t.Context(), put)
	require.NoError(t, err)
	require.NotEqual(t, end, a.store.End())

	waiting := make(chan error, 1)
	go func() { waiting <- commit(t.Context()) }()
	synctest.Wait()
	require.Empty(t, waiting)
	p.HoldWrites(nil, 0)
	require.NoError(t, <-waiting)
	p.HoldWrites(nil, 0)
	require.NoError(t, commit(t.Context()))

	p.HoldWrites(errHeld, time.Second)
	go func() { waiting <- commit(t.Context()) }()
	synctest.Wait()
	a.stop()
	require.ErrorIs(t, <-waiting, replication.ErrNotActive)
}
