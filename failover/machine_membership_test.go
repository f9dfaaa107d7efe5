// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

// A node that is neither in sync nor connected reports a remedy. It suggests a failover only if the leases and the
// addresses show that the in-sync node is lost.
func TestWaitingReason(t *testing.T) {
	third := NodeInfo{ID: uuid.MustParse("cccccccc-0000-0000-0000-000000000000"), Name: "c", Address: "c:1"}
	inPlaceOfB := third
	inPlaceOfB.Address = testNodes[1].Address
	live := func(nodes ...NodeInfo) []Live {
		var out []Live
		for _, n := range nodes {
			out = append(out, Live{Node: n})
		}
		return out
	}
	a, b := testNodes[0], testNodes[1]
	for name, c := range map[string]struct {
		self     NodeInfo
		record   Record
		live     []Live
		cause    LostCause
		want     []string
		failover bool
	}{
		"third of a healthy pair": {
			third, recordWith(0, 0, 1), live(a, b, third), LostRejected,
			[]string{"already has two nodes", "a (a:1)", "b (b:1)"},
			false,
		},
		"third of a pair that is down": {
			third, recordWith(0, 0, 1), live(third), LostRefused,
			[]string{"start one of them"},
			false,
		},
		"third while the active is new": {
			third, recordWith(0, 0, 1), live(b, third), LostSilence,
			[]string{"start one of them"},
			false,
		},
		"active rejects this node": {
			a, recordWith(1, 1), live(a, b), LostRejected,
			[]string{"rejects this node"},
			false,
		},
		"network to the active": {
			a, recordWith(1, 1), live(a, b), LostSilence,
			[]string{"check the network"},
			false,
		},
		"active lost": {
			a, recordWith(1, 1), live(a), LostRefused,
			[]string{"only the active has all records"},
			true,
		},
		"active wiped": {
			a, recordWith(1, 1), live(a, inPlaceOfB), LostRejected,
			[]string{"c (b:1)", "stop the new node"},
			true,
		},
		"wiped, no other node in sync": {
			inPlaceOfB, recordWith(1, 1), live(a, inPlaceOfB), LostRejected,
			[]string{"Restore that directory", "a (a:1)", "never on this node"},
			true,
		},
		"wiped, other node in sync": {
			inPlaceOfB, recordWith(1, 0, 1), live(inPlaceOfB), LostRefused,
			[]string{"Node a (a:1) also has all records"},
			false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			id := usedIdentity()
			id.Node = c.self.ID
			s := NewState(Settings{}, c.self, "p", testPair)
			s.ident, s.known, s.reachable, s.rec, s.live, s.liveKnown = id, true, true, c.record, c.live, true
			s.mode, s.follow = modeFollow, following{active: b, cause: c.cause}
			for _, text := range c.want {
				require.Contains(t, s.Reason(), text)
			}
			require.NotContains(t, s.Reason(), "--force")
			if !c.failover {
				require.NotContains(t, s.Reason(), "lockstep failover")
			}
		})
	}
}
