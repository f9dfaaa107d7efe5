// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/throttle"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// Background work with pauses has the same results as background work at full speed. A canceled context ends a
// pause.
func TestBackgroundPauses(t *testing.T) {
	o := options(memfs.New())
	o.BackgroundPercent = 50
	n, _ := filled(t, o)
	ctx := t.Context()
	full := throttle.FullSpeed(ctx)

	want, err := scanStore(full, n.s, checkpoint.ScanOptions{})
	require.NoError(t, err)
	got, err := scanStore(ctx, n.s, checkpoint.ScanOptions{})
	require.NoError(t, err)
	require.Positive(t, got.Messages)
	got.Time, got.Checkpoint, got.FileBytes = want.Time, want.Checkpoint, want.FileBytes
	got.GainBytes, got.Pages, got.UsedPages = want.GainBytes, want.Pages, want.UsedPages
	require.Equal(t, want, got)

	wantDigest, err := digestOf(full, n.s)
	require.NoError(t, err)
	digest, err := digestOf(ctx, n.s)
	require.NoError(t, err)
	require.Equal(t, wantDigest, digest)
	report, err := checkStore(ctx, n.s, nil)
	require.NoError(t, err)
	require.Empty(t, report.Problems)
	require.Equal(t, want.Messages+want.DeadMessages, report.Messages)
	plan, err := n.s.Maintenance().PlanRewrite(ctx, rewrite.Options{PageSize: 8192})
	require.NoError(t, err)
	require.Equal(t, want.Messages, plan.Messages)
	n.check()

	require.NoError(t, n.s.Close())
	o.BackgroundPercent = 1 // a pause is 99 times as long as the work
	n = openNode(t, o)
	ended, cancel := context.WithCancel(ctx)
	pausing := make(chan struct{}, 1)
	result := make(chan error, 1)
	go func() {
		_, err := checkStore(ended, n.s, func(_, _ uint64) {
			select {
			case pausing <- struct{}{}:
			default:
			}
		})
		result <- err
	}()
	<-pausing // progress is reported before the pause
	cancel()
	if err := <-result; err != nil { // the work may have finished before the cancel
		require.ErrorIs(t, err, context.Canceled)
	}
}
