// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Each node that becomes active writes the value set by an operator, regardless of its configuration.
func TestMinInSyncSet(t *testing.T) {
	r := newRig(t, Settings{MinInSync: 1})
	rec := recordWith(1, 0, 1)
	rec.MinInSync, rec.MinInSyncSet = 2, 2
	r.start(usedIdentity(), rec, 0)
	r.report(FollowerLost{Cause: LostRefused})
	swap := effect[SwapRecord](t, r.handshake(r.after(time.Second)))
	require.Equal(t, 2, swap.Next.MinInSync)
	require.Equal(t, 2, swap.Next.MinInSyncSet)

	r = newRig(t, Settings{MinInSync: 2})
	r.start(usedIdentity(), recordWith(1, 0, 1), 0)
	r.report(FollowerLost{Cause: LostRefused})
	require.Equal(t, 2, effect[SwapRecord](t, r.handshake(r.after(time.Second))).Next.MinInSync, "no override")
}
