// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"crypto/sha256"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store/backup"
)

// A node restored from a backup has the rules, roles, tokens and quotas in the backup. Later changes are lost.
func TestRestoredRules(t *testing.T) { simulated(t, testRestoredRules) }

func testRestoredRules(t *testing.T) {
	sets := t.TempDir()
	n := startNamedAlone(t, func(c *config.Config) { c.Backup.Path = sets })
	root := as(t.Context(), "root")
	require.NoError(t, n.createAs("root", "orders"))
	_, err := n.access().PutRole(root, &pb.PutRoleRequest{Role: &pb.AccessRole{
		Name: "writer", Rights: []pb.AccessRight{mayPublish},
	}})
	require.NoError(t, err)
	_, err = n.access().Grant(root, &pb.GrantRequest{Rule: &pb.AccessRule{
		Principal: "alice", Queue: "orders", Roles: []string{"writer"},
	}})
	require.NoError(t, err)
	sum := sha256.Sum256([]byte("lsk_token"))
	_, err = n.access().CreateToken(root, &pb.CreateTokenRequest{Token: &pb.AccessToken{
		Name: "t", Principal: "alice", Sha256: sum[:],
	}})
	require.NoError(t, err)
	_, err = n.access().PutQuota(root, &pb.PutQuotaRequest{Quota: &pb.AccessQuota{Queue: "team/*", Queues: 1}})
	require.NoError(t, err)
	before, err := n.access().ListAccess(root, &pb.ListAccessRequest{})
	require.NoError(t, err)

	making, err := pb.NewMaintenanceServiceClient(n.conn).Backup(root, &pb.BackupRequest{})
	require.NoError(t, err)
	for {
		if _, err := making.Recv(); err != nil {
			require.ErrorIs(t, err, io.EOF)
			break
		}
	}
	n.revoke("alice", "orders")
	n.grant("mallory", "orders", mayPublish)
	denied(t, n.publishAs("alice", "orders", "x"))
	n.stop()

	list, err := backup.List(t.Context(), backup.Directory(nil, sets))
	require.NoError(t, err)
	require.Len(t, list, 1)
	dir := filepath.Join(t.TempDir(), "data")
	_, err = backup.Restore(t.Context(), list[0].Path, dir, backup.RestoreOptions{})
	require.NoError(t, err)
	c := settings(t, "restored")
	c.Data.Dir, c.Access.Operators = dir, []string{"root"}
	restored := startNamed(t, c)
	require.Eventually(t, func() bool {
		return restored.publishAs("root", "orders", "first") == nil
	}, testTimeout, 10*time.Millisecond)
	after, err := restored.access().ListAccess(root, &pb.ListAccessRequest{})
	require.NoError(t, err)
	for _, l := range []*pb.ListAccessResponse{before, after} { // clear the fields that depend on the time of the call
		l.Version = 0
	}
	require.Equal(t, before.String(), after.String())
	require.NoError(t, restored.publishAs("alice", "orders", "x"))
	denied(t, restored.publishAs("mallory", "orders", "x"))
	require.NoError(t, restored.createAs("root", "team/one"))
	exceeded(t, restored.createAs("root", "team/two"), "quota")
}
