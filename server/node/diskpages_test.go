// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// A node that is low on disk space accepts publishes again after messages are purged, even though its page file
// does not become smaller.
func TestPurgeFreesDiskSpace(t *testing.T) {
	disk := memfs.New()
	c := settings(t, "alone")
	c.Data.Dir = "/data"
	require.NoError(t, disk.MkdirAll("/data", 0o700))
	c.WAL.SegmentBytes, c.WAL.KeepBytes, c.Disk.LowWatermark = 1<<20, 1<<20, 64<<20
	c.Checkpoint.Bytes, c.Checkpoint.Interval = 1<<20, config.Duration(time.Second)
	n := startOn(t, c, disk)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	n.createQueue("q")
	publish := func(bytes int) error {
		_, err := n.queues.Publish(t.Context(), &pb.PublishRequest{
			Queue: "q", Messages: batch(strings.Repeat("x", bytes)),
		})
		return err
	}
	for range 40 {
		require.NoError(t, publish(1<<20))
	}
	require.Eventually(t, func() bool { // until the messages are in pages
		s := n.status().GetStore()
		return s.GetPages()*uint64(s.GetPageSize()) > 38<<20
	}, time.Minute, 5*time.Millisecond)
	u, err := disk.Usage("/data")
	require.NoError(t, err)
	disk.SetCapacity(int64(u.TotalBytes-u.AvailableBytes) + 48<<20)
	require.Eventually(t, func() bool { return errors.Is(kind(publish(1)), apierror.ErrDiskLow) }, time.Minute,
		20*time.Millisecond)
	_, err = n.queues.PurgeQueue(t.Context(), &pb.PurgeQueueRequest{Name: "q"})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return publish(1) == nil }, time.Minute, 5*time.Millisecond)
	require.Less(t, n.status().GetStore().GetDiskFree(), uint64(64<<20), "the page file keeps its size")
}
