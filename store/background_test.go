package store_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/pace"
	"github.com/lockstep-mq/lockstep/store/vfs/memfs"
)

// TestBackgroundPauses: work that pauses finds what work at full speed finds, and ends with its context in the middle
// of a pause.
func TestBackgroundPauses(t *testing.T) {
	o := options(memfs.New())
	o.BackgroundPercent = 50
	n, _ := filled(t, o)
	ctx := t.Context()
	full := pace.FullSpeed(ctx)

	want, err := n.s.Scan(full, store.ScanOptions{})
	require.NoError(t, err)
	got, err := n.s.Scan(ctx, store.ScanOptions{})
	require.NoError(t, err)
	require.Positive(t, got.Messages)
	got.Time, got.Checkpoint, got.FileBytes = want.Time, want.Checkpoint, want.FileBytes
	got.GainBytes, got.Pages, got.UsedPages = want.GainBytes, want.Pages, want.UsedPages
	require.Equal(t, want, got)

	wantDigest, err := n.s.Digest(full)
	require.NoError(t, err)
	digest, err := n.s.Digest(ctx)
	require.NoError(t, err)
	require.Equal(t, wantDigest, digest)
	report, err := n.s.Check(ctx, nil)
	require.NoError(t, err)
	require.Empty(t, report.Problems)
	require.Equal(t, want.Messages+want.DeadMessages, report.Messages)
	plan, err := n.s.PlanRewrite(ctx, store.RewriteOptions{PageSize: 8192})
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
		_, err := n.s.Check(ended, func(_, _ uint64) {
			select {
			case pausing <- struct{}{}:
			default:
			}
		})
		result <- err
	}()
	<-pausing // it reports before it pauses
	cancel()
	if err := <-result; err != nil { // it may have been done
		require.ErrorIs(t, err, context.Canceled)
	}
}
