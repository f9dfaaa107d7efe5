// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/store/backup"
)

// If an empty node starts before a restored node, the empty node creates the pair. The restored node does not
// join that pair. It continues to respond and reports the reason.
func TestRestoreWithEmptyPeer(t *testing.T) { simulated(t, testRestoreWithEmptyPeer) }

func testRestoreWithEmptyPeer(t *testing.T) {
	sets := t.TempDir()
	n := startAlone(t, func(c *config.Config) { c.Backup.Path = sets })
	n.createQueue("q")
	n.publish("q", "1", "2")
	making, err := n.maintenance.Backup(t.Context(), &pb.BackupRequest{})
	require.NoError(t, err)
	for {
		if _, err := making.Recv(); err != nil {
			require.ErrorIs(t, err, io.EOF)
			break
		}
	}
	n.stop()
	list, err := backup.List(t.Context(), backup.Directory(nil, sets))
	require.NoError(t, err)
	dir := filepath.Join(t.TempDir(), "data")
	_, err = backup.Restore(t.Context(), list[0].Path, dir, backup.RestoreOptions{})
	require.NoError(t, err)

	etcd := startEtcd(t)
	empty := start(t, settingsOfPair(t, "empty", etcd))
	empty.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	c := settingsOfPair(t, "restored", etcd)
	c.Data.Dir = dir
	restored := start(t, c)
	var rejected *pb.Condition
	require.Eventually(t, func() bool {
		for _, c := range restored.status().GetConditions() {
			if c.GetKind() == string(conditions.RecordRejected) {
				rejected = c
			}
		}
		return rejected != nil
	}, testTimeout, 10*time.Millisecond)
	require.Equal(t, pb.Severity_SEVERITY_CRITICAL, rejected.GetSeverity())
	require.Equal(t, pb.Role_ROLE_RECOVERING, restored.role())
	require.Equal(t, pb.Role_ROLE_ACTIVE_ALONE, empty.role())
}
