// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package chaos

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// Each condition of a voter is reported when its cause occurs in the witness, and cleared after the runbook's action.
// The pair serves continuously.
func TestVoterConditions(t *testing.T) {
	t.Parallel() // mostly idle
	p := start(t, cluster.Options{Raft: true})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	inSync(t, p)
	dir := p.Witness.DataDir()
	old := filepath.Join(t.TempDir(), "old")

	require.NoError(t, p.Witness.Stop())
	require.NoError(t, os.CopyFS(old, os.DirFS(dir)))
	reported(t, p, conditions.VoterMissing, true)
	acked(t, w)
	require.NoError(t, p.Witness.Start())
	reported(t, p, conditions.VoterMissing, false)

	// Restore an older image of the witness's disk, without later votes and log entries.
	for range 2 {
		handOver(t, p)
		inSync(t, p)
	}
	require.NoError(t, p.Witness.Stop())
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.CopyFS(dir, os.DirFS(old)))
	require.NoError(t, p.Witness.Start())
	reported(t, p, conditions.VoterRolledBack, true)
	acked(t, w)

	// Follow the condition's action: without its directory, the witness is a new voter until an operator replaces the
	// old voter.
	require.NoError(t, p.Witness.Stop())
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, p.Witness.Start())
	reported(t, p, conditions.VoterWiped, true)
	reported(t, p, conditions.VoterRolledBack, false)
	acked(t, w)
	out, err := p.Command(limited(t), "pair", "replace", p.Witness.Address, p.Witness.Address, "--voters", p.Voters())
	require.NoError(t, err, "%s", out)
	reported(t, p, conditions.VoterWiped, false)
	inSync(t, p)
	verify(t, p, w)
}

// reported waits until both nodes report a condition or, if want is false, until neither does.
func reported(t *testing.T, p *cluster.Pair, kind conditions.Kind, want bool) {
	t.Helper()
	reportedWithin(t, p, kind, want, bound) // VoterMissing and VoterWiped are reported after 10 seconds
}

// reportedWithin is like reported, but with a given bound.
func reportedWithin(t *testing.T, p *cluster.Pair, kind conditions.Kind, want bool, bound time.Duration) {
	t.Helper()
	var a, b *pb.GetStatusResponse
	has := func(st *pb.GetStatusResponse) bool {
		for _, c := range st.GetConditions() {
			if c.GetKind() == string(kind) {
				return true
			}
		}
		return false
	}
	require.Eventually(t, func() bool {
		err := p.Wait(limited(t), "responses of both nodes", func(one, other *pb.GetStatusResponse) bool {
			a, b = one, other
			return true
		})
		return err == nil && has(a) == want && has(b) == want
	}, bound, 100*time.Millisecond, "%s: want %v, a reports %v, b reports %v", kind, want, a.GetConditions(),
		b.GetConditions())
}
