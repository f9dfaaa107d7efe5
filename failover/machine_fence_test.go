// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// INV-1, INV-9: the fence of the record that activates a node is durable before the role starts, on every path to the
// role. If the process is then killed, and the coordinator is restored to the previous record, the next process waits
// for the correct record. It neither reuses the term nor allows the other node to do so.
func TestFenceIsDurableBeforeTheRole(t *testing.T) {
	handedOver := recordWith(0, 0, 1)
	handedOver.Config, handedOver.Term, handedOver.OpID = 6, 3, "handed over"
	before := recordWith(1, 0, 1)
	for name, become := range map[string]func(r *rig) []Effect{
		"handed over": func(r *rig) []Effect { return r.seeRecord(handedOver, 101) },
		"taken over": func(r *rig) []Effect {
			r.report(FollowerLost{Cause: LostRefused})
			return r.won()
		},
		"by force": func(r *rig) []Effect {
			alone := recordWith(1, 1)
			alone.Config, alone.OpID = 6, "left"
			r.seeRecord(alone, 101)
			r.report(FollowerLost{Cause: LostRefused})
			r.observe(true, 0)
			r.step(ForceRequested{ID: "x", Config: 6})
			return r.won()
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := standbyPair(t, Settings{})
			id := usedIdentity()
			started := false
			for _, e := range become(r) {
				switch e := e.(type) {
				case SetFence:
					id.Fence = e.Fence
				case StartActive:
					started = true
					id.End.Term = e.Spec.Term
				}
				if started {
					break // the process is killed
				}
			}
			require.True(t, started)
			require.Equal(t, r.s.rec.Fence(), id.Fence)

			again := newRig(t, Settings{})
			again.step(Started{Identity: id})
			again.observe(true)
			require.Empty(t, kinds(again.step(Loaded{Record: before, Revision: 100})), "the coordinator was restored")
			require.ErrorIs(t, again.s.refused, ErrRecordOld)
			require.Empty(t, kinds(again.after(time.Hour)))
		})
	}
}
