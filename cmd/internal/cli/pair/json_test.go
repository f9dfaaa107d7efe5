// SPDX-License-Identifier: Apache-2.0

package pair

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// TestJSON compares the JSON output with golden files.
func TestJSON(t *testing.T) {
	var b bytes.Buffer
	p, err := output.New(&b, "json")
	require.NoError(t, err)
	env := &cli.Env{Print: p}
	require.NoError(t, printRebuild(env, golden.Fill(&pb.AdoptRecordResponse{})))
	var m raft.Member
	golden.FillStruct(&m)
	require.NoError(t, printVoters(env, []raft.Member{m}))
	golden.Text(t, "output.jsonl", b.String())
}
