// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
	"github.com/lockstep-mq/lockstep/test/tier"
)

// If disks lose synced data, a power failure of both nodes loses acknowledged messages. In some seeds the pair detects
// the loss by the coordinator's high-water mark (INV-12) and does not serve; in others the simulation may detect it.
// With correct disks, the same simulation succeeds. (test/mutation verifies that the simulation detects defects of
// Lockstep.)
func TestLossOfSyncedDataIsDetected(t *testing.T) {
	detected, notRecovered := 0, 0
	for seed := range uint64(tier.Count(2, 5)) {
		for _, losesSyncs := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				w, err := newWorld(seed, zap.NewNop())
				require.NoError(t, err)
				w.options = drawOptions(rngOf(1000))
				w.options.Sync, w.options.LosesSyncs = always, losesSyncs
				w.options.CheckpointInterval = time.Hour // a checkpoint would keep messages that the log loses
				err = w.run([]fault{{At: 2 * time.Second, Kind: powerLossOfBoth, For: 100 * time.Millisecond}})
				switch {
				case !losesSyncs:
					require.NoError(t, err)
				case w.done.rules[historycheck.RuleLost] > 0:
					require.Error(t, err)
					require.Contains(t, err.Error(), "violations")
					detected++
				case err != nil:
					require.Contains(t, err.Error(), "not recovered")
					require.Regexp(t, "rolled back|lost", err.Error(), "the status must contain the reason")
					notRecovered++
				}
			})
		}
	}
	require.NotZero(t, notRecovered, "the pair never detected the loss; the simulation detected it %d times", detected)
}
