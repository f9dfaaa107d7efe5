// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A coordinator without space rejects the swap. The outcome is known, so the pair continues as far as possible without
// the swap, reports the reason, and retries later.
func TestRefusedSwap(t *testing.T) {
	r := activePair(t, Settings{})
	swap := effect[SwapRecord](t, r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostReset}))
	r.step(Swapped{OpID: swap.Next.OpID, Err: fmt.Errorf("%w: no space", ErrRefused)})
	require.Equal(t, RoleBlocked, r.s.Role())
	require.Contains(t, r.s.Reason(), "is disconnected")
	require.Contains(t, r.s.Reason(), "no space")
	require.Empty(t, r.s.pending, "the swap is known not to be applied")
	require.True(t, r.s.act.sent.Serve, "INV-8 only applies to unknown outcomes")

	requireNo[SwapRecord](t, r.after(100*time.Millisecond))
	again := effect[SwapRecord](t, r.after(time.Second))
	require.Equal(t, swap.Next.InSync, again.Next.InSync)
	r.won()
	require.Equal(t, RoleActiveAlone, r.s.Role())
	require.NotContains(t, r.s.Reason(), "no space")
}

// A rejection does not resolve an earlier attempt without a response, which may still be applied.
func TestRefusedAfterUnknownStaysPending(t *testing.T) {
	r := activePair(t, Settings{})
	swap := effect[SwapRecord](t, r.report(StandbyLost{Node: testNodes[1].ID, Cause: LostReset}))
	r.step(Swapped{OpID: swap.Next.OpID, Err: ErrUnknownOutcome})
	r.after(time.Second)
	r.step(Loaded{Record: r.s.rec, Revision: r.s.rev})
	require.Equal(t, swap.Next.OpID, r.s.swapping)
	r.step(Swapped{OpID: swap.Next.OpID, Err: fmt.Errorf("%w: no space", ErrRefused)})
	require.Len(t, r.s.pending, 1)
}
