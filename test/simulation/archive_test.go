// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

// A node reports an unwritable log archive exactly after the delay in the condition's definition. When the retained log
// exceeds its limit, the archive has a gap, which the node reports until one of its backups covers the gap, also after
// a restart. The clock is simulated; the archive is on the real disk.
func TestArchiveConditions(t *testing.T) {
	dir := t.TempDir()
	archive, away := filepath.Join(dir, "archive"), filepath.Join(dir, "away")
	synctest.Test(t, func(t *testing.T) {
		w, err := newWorld(1, zap.NewNop())
		require.NoError(t, err)
		w.options.Sync, w.options.MinInSync = always, 1
		w.options.CheckpointBytes, w.options.CheckpointInterval, w.options.LogKeepBytes = 1<<20, time.Second, 0
		w.options.Archive = archive
		for _, h := range w.hosts {
			h.start()
		}
		defer func() { require.NoError(t, w.end()) }()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		require.NoError(t, w.waitInSync(ctx))
		c, err := w.NewClient(ctx)
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		_, _, err = admin.New(c).CreateQueue(ctx, "q", admin.CreateQueueOptions{})
		require.NoError(t, err)
		publish := func(bytes int) {
			_, err := c.Publish(ctx, "q", client.Message{Body: make([]byte, bytes)})
			require.NoError(t, err)
		}
		publish(100)
		sleep(ctx, 2*config.Default().WAL.ArchiveEvery.Std())
		require.Nil(t, w.reports(ctx, w.hosts[0], conditions.ArchiveLag))

		// A file now replaces the archive's mount point.
		require.NoError(t, os.Rename(archive, away))
		require.NoError(t, os.WriteFile(archive, nil, 0o600))
		broken := w.now()
		publish(100)
		lag := w.waitReports(ctx, t, w.hosts[0], conditions.ArchiveLag, true)
		after, every := conditions.Find(conditions.ArchiveLag).After, config.Default().WAL.ArchiveEvery.Std()
		require.GreaterOrEqual(t, w.now()-broken, after)
		require.LessOrEqual(t, w.now()-broken, after+every+2*time.Second)
		require.Contains(t, lag.GetDetails(), "not a directory")
		require.Equal(t, pb.Severity_SEVERITY_WARNING, lag.GetSeverity())

		for range 8 {
			publish(1 << 20) // in total more than the limit
			sleep(ctx, every)
		}
		require.Nil(t, w.reports(ctx, w.hosts[0], conditions.ArchiveGap), "the archive is unavailable")
		require.NoError(t, os.Remove(archive))
		require.NoError(t, os.Rename(away, archive))
		w.waitReports(ctx, t, w.hosts[0], conditions.ArchiveLag, false)
		gap := w.waitReports(ctx, t, w.hosts[0], conditions.ArchiveGap, true)
		require.Contains(t, gap.GetDetails(), "before record")
		require.Equal(t, pb.Severity_SEVERITY_CRITICAL, gap.GetSeverity())
		require.True(t, w.hosts[0].stopForNow())
		w.hosts[0].restart()
		require.NoError(t, w.waitInSync(ctx))
		again := w.waitReports(ctx, t, w.hosts[0], conditions.ArchiveGap, true)
		require.Equal(t, gap.GetDetails(), again.GetDetails())

		backups, err := pb.NewMaintenanceServiceClient(w.ConnTo(w.hosts[0].address)).Backup(ctx,
			&pb.BackupRequest{Path: filepath.Join(dir, "backups"), FullSpeed: true})
		require.NoError(t, err)
		for err == nil {
			_, err = backups.Recv()
		}
		require.ErrorIs(t, err, io.EOF)
		w.waitReports(ctx, t, w.hosts[0], conditions.ArchiveGap, false)
	})
}
