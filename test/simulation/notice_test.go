//go:build unix

package simulation

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/test/cluster"
)

// TestLossIsNoticed: with disks that forget, a power failure of both nodes loses what was acknowledged, and the simulation says so. It finds
// nothing in the same simulation with disks that do not. (test/mutation has it notice what is wrong in Lockstep itself.)
func TestLossIsNoticed(t *testing.T) {
	noticed := 0
	for seed := range uint64(5) {
		for _, lies := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				w, err := newWorld(seed, zap.NewNop())
				require.NoError(t, err)
				w.options = drawOptions(rngOf(1000))
				w.options.Sync, w.options.Lies = always, lies
				w.options.CheckpointInterval = time.Hour // a checkpoint would be on the disk, whatever the log
				err = w.run([]fault{{At: 2 * time.Second, Kind: powerLossOfBoth, For: 100 * time.Millisecond}})
				if !lies {
					require.NoError(t, err)
				} else if w.done.rules[cluster.RuleLost] > 0 {
					require.ErrorContains(t, err, "violations")
					noticed++
				}
			})
		}
	}
	require.NotZero(t, noticed)
}
