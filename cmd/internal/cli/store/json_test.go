// SPDX-License-Identifier: Apache-2.0

package store

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// TestJSON compares the JSON output with golden files.
func TestJSON(t *testing.T) {
	var b bytes.Buffer
	p, err := output.New(&b, "json")
	require.NoError(t, err)
	env := &cli.Env{Print: p}
	require.NoError(t, PrintScan(p, "node a", golden.Fill(&pb.ScanResult{})))
	require.NoError(t, printRewrite(env, "node a", false, golden.Fill(&pb.RewriteResult{})))
	require.NoError(t, printSettings(env, golden.Fill(&pb.MaintenanceSettings{})))
	var local backup.Set
	golden.FillStruct(&local)
	require.NoError(t, printSets(env, "node a",
		[]saveSet{newBackup(golden.Fill(&pb.SaveSet{})), newLocalBackup(local)}))
	set := newBackup(golden.Fill(&pb.SaveSet{}))
	recordVerified(&set, golden.Fill(&pb.VerifyBackupResult{}))
	require.NoError(t, printSets(env, "node a", []saveSet{set}))
	require.NoError(t, printMap(p, "node a", golden.Fill(&pb.GetPageMapResponse{})))
	var archive archived
	var restore restored
	golden.FillStruct(&archive)
	golden.FillStruct(&restore)
	require.NoError(t, p.Object(archive))
	require.NoError(t, p.Object(restore))
	golden.Text(t, "output.jsonl", b.String())
}
