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
	"github.com/lockstep-mq/lockstep/server/conditions"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// TestVoterConditions strikes the witness so that each condition of a voter has its real cause, follows the runbook out
// of it, and sees the condition end. The pair goes on serving all the time.
func TestVoterConditions(t *testing.T) {
	t.Parallel() // it mostly waits
	p := start(t, cluster.Options{Raft: true})
	w := work(t, p, cluster.WorkloadOptions{Seed: seed(t)})
	inSync(t, p)
	dir := p.Witness.DataDir()
	old := filepath.Join(t.TempDir(), "old")

	require.NoError(t, p.Witness.Stop())
	require.NoError(t, os.CopyFS(old, os.DirFS(dir)))
	told(t, p, conditions.VoterMissing, true)
	acked(t, w)
	require.NoError(t, p.Witness.Start())
	told(t, p, conditions.VoterMissing, false)

	// An older image of its disk: it has forgotten what it has agreed to since.
	for range 2 {
		handOver(t, p)
		inSync(t, p)
	}
	require.NoError(t, p.Witness.Stop())
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, os.CopyFS(dir, os.DirFS(old)))
	require.NoError(t, p.Witness.Start())
	told(t, p, conditions.VoterRolledBack, true)
	acked(t, w)

	// As its action says: without its directory it is another voter, until an operator says that it takes the place.
	require.NoError(t, p.Witness.Stop())
	require.NoError(t, os.RemoveAll(dir))
	require.NoError(t, p.Witness.Start())
	told(t, p, conditions.VoterWiped, true)
	told(t, p, conditions.VoterRolledBack, false)
	acked(t, w)
	out, err := p.Command(limited(t), "pair", "replace", p.Witness.Address, p.Witness.Address, "--voters", p.Voters())
	require.NoError(t, err, "%s", out)
	told(t, p, conditions.VoterWiped, false)
	inSync(t, p)
	verify(t, p, w)
}

// told waits until both nodes tell of a condition, or neither does.
func told(t *testing.T, p *cluster.Pair, kind conditions.Kind, want bool) {
	t.Helper()
	toldWithin(t, p, kind, want, bound) // VoterMissing and VoterWiped wait for 10 seconds first
}

// toldWithin is told with a bound of its own.
func toldWithin(t *testing.T, p *cluster.Pair, kind conditions.Kind, want bool, bound time.Duration) {
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
		err := p.Wait(limited(t), "both nodes answer", func(one, other *pb.GetStatusResponse) bool {
			a, b = one, other
			return true
		})
		return err == nil && has(a) == want && has(b) == want
	}, bound, 100*time.Millisecond, "%s: want %v, a tells %v, b tells %v", kind, want, a.GetConditions(),
		b.GetConditions())
}
