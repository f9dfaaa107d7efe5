// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// verifySet verifies a backup on a node.
func (n *testNode) verifySet(ctx context.Context, req *pb.VerifyBackupRequest) (*pb.VerifyBackupResult, error) {
	n.t.Helper()
	in, err := n.maintenance.VerifyBackup(ctx, req)
	require.NoError(n.t, err)
	for {
		r, err := in.Recv()
		if err != nil || r.GetResult() != nil {
			return r.GetResult(), err
		}
	}
}

// VerifyBackup reports whether a backup can be restored. For a missing backup, or a name outside the backup
// directory, it returns an error.
func TestVerifyBackup(t *testing.T) { simulated(t, testVerifyBackup) }

func testVerifyBackup(t *testing.T) {
	c := settings(t, "a")
	dir := filepath.Join(t.TempDir(), "sets")
	c.Backup.Path, c.WAL.Archive = dir, filepath.Join(t.TempDir(), "log")
	n := start(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	n.createQueue("q")
	n.publish("q", "one", "two", "three")
	_, err := n.verifySet(t.Context(), &pb.VerifyBackupRequest{})
	require.Equal(t, codes.NotFound, status.Code(err))

	stream, err := n.maintenance.Backup(t.Context(), &pb.BackupRequest{FullSpeed: true})
	require.NoError(t, err)
	var set *pb.SaveSet
	for set == nil {
		r, err := stream.Recv()
		require.NoError(t, err)
		set = r.GetSet()
	}
	n.publish("q", "four")
	flushed, err := n.maintenance.FlushArchive(t.Context(), &pb.FlushArchiveRequest{})
	require.NoError(t, err)
	r, err := n.verifySet(t.Context(), &pb.VerifyBackupRequest{Name: set.GetName()})
	require.NoError(t, err)
	require.True(t, r.GetRestorable(), r.GetProblem())
	require.EqualValues(t, 3, r.GetMessages())
	require.Equal(t, set.GetName(), r.GetSet().GetName())
	require.Empty(t, r.GetArchiveProblem())
	require.Equal(t, flushed.GetLastLsn(), r.GetReach().GetLsn(), "with the archive, later messages too")
	require.Greater(t, r.GetReach().GetLsn(), set.GetPosition().GetLsn())
	require.Positive(t, r.GetNeededBytes())

	for _, name := range []string{"../" + filepath.Base(dir) + "/" + set.GetName(), "/etc", "20200101T000000Z-lsn1"} {
		_, err = n.verifySet(t.Context(), &pb.VerifyBackupRequest{Name: name})
		require.Equal(t, codes.NotFound, status.Code(err), name)
	}
	_, err = n.verifySet(t.Context(), &pb.VerifyBackupRequest{Path: "relative"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))

	pack := filepath.Join(set.GetPath(), "pages.pack")
	raw, err := os.ReadFile(pack)
	require.NoError(t, err)
	raw[len(raw)/2] ^= 1
	require.NoError(t, os.WriteFile(pack, raw, 0o600))
	r, err = n.verifySet(t.Context(), &pb.VerifyBackupRequest{})
	require.NoError(t, err, "corruption is a finding, not an error")
	require.False(t, r.GetRestorable())
	require.NotEmpty(t, r.GetProblem())
}

// A node cannot verify its encrypted backups, because it does not have the secret key.
func TestVerifyEncrypted(t *testing.T) { simulated(t, testVerifyEncrypted) }

func testVerifyEncrypted(t *testing.T) {
	c := settings(t, "a")
	c.Backup.Path = filepath.Join(t.TempDir(), "sets")
	c.Backup.Recipients = []string{"age1lggyhqrw2nlhcxprm67z43rta597azn8gknawjehu9d9dl0jq3yqqvfafg"}
	n := start(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	stream, err := n.maintenance.Backup(t.Context(), &pb.BackupRequest{FullSpeed: true})
	require.NoError(t, err)
	for {
		r, err := stream.Recv()
		require.NoError(t, err)
		if r.GetSet() != nil {
			break
		}
	}
	_, err = n.verifySet(t.Context(), &pb.VerifyBackupRequest{})
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.Equal(t, pb.ErrorReason_ERROR_REASON_BACKUP_ENCRYPTED, reasonOf(err))
}

// The regions of a page map add up to the whole page file. The number of regions is limited.
func TestPageMapCall(t *testing.T) { simulated(t, testPageMapCall) }

func testPageMapCall(t *testing.T) {
	n := start(t, settings(t, "a"))
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	n.createQueue("q")
	n.publish("q", "one", "two", "three")
	_, err := pb.NewAdminServiceClient(n.conn).Checkpoint(t.Context(), &pb.CheckpointRequest{})
	require.NoError(t, err)
	m, err := n.maintenance.GetPageMap(t.Context(), &pb.GetPageMapRequest{})
	require.NoError(t, err)
	require.LessOrEqual(t, len(m.GetRegions()), 256)
	require.Positive(t, m.GetTotal().GetMessages())
	var pages uint64
	for _, r := range m.GetRegions() {
		require.Equal(t, pages+1, r.GetFirstPage())
		require.Equal(t, r.GetPages(), r.GetMessages()+r.GetIndex()+r.GetBitmap()+r.GetHeldCheckpoint()+
			r.GetHeldReader()+r.GetFree())
		pages += r.GetPages()
	}
	require.Equal(t, m.GetTotal().GetPages(), pages)
	_, err = n.maintenance.GetPageMap(t.Context(), &pb.GetPageMapRequest{Regions: 4097})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	require.Contains(t, err.Error(), "4096")
}
