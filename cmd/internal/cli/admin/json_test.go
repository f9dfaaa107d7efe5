// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// TestJSON compares the JSON output with golden files.
func TestJSON(t *testing.T) {
	var b bytes.Buffer
	p, err := output.New(&b, "json")
	require.NoError(t, err)
	env := &cli.Env{Print: p}
	require.Error(t, printVerification(env, golden.Fill(&pb.VerifyResponse{})))
	require.Error(t, printSites(env, golden.Fill(&pb.VerifySitesResponse{})))
	require.NoError(t, printForce(env, golden.Fill(&pb.ForceFailoverResponse{})))
	require.NoError(t, printSwitchover(env, golden.Fill(&pb.SwitchoverResponse{})))
	golden.Text(t, "output.jsonl", b.String())
}
