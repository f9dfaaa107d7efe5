// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
)

// stored makes a delivery of message n.
func stored(n int, sequence uint64) client.Stored {
	return client.Stored{Sequence: sequence, Message: client.Message{Body: makeBody(1, n)}}
}

// books is a ledger of six messages, of which the pair has acknowledged five, under their number plus one; all but the
// last are delivered and stored in that way.
func books(t *testing.T) *ledger {
	t.Helper()
	l := newLedger()
	for i := range 6 {
		require.Equal(t, i, l.next())
	}
	for i := range 5 {
		l.acknowledge(i, client.Receipt{Sequence: uint64(i + 1), Address: "a"})
	}
	return l
}

// TestLedger: the demo's verdict must be able to fail.
func TestLedger(t *testing.T) {
	all := []int{0, 1, 2, 3, 4} // numbers of the messages, each under its number plus one
	good := Verdict{Published: 6, Acknowledged: 5, Delivered: 5}
	for _, test := range []struct {
		name               string
		delivered, audited []client.Stored
		before             func(l *ledger)
		want               func(v *Verdict)
	}{
		{name: "nothing is wrong"},
		{
			name:      "again before its acknowledgement was confirmed: at least once",
			delivered: []client.Stored{stored(4, 5)}, want: func(v *Verdict) {
				v.Redelivered = 1
			},
		},
		{
			name: "again after its acknowledgement was confirmed", before: func(l *ledger) { l.confirm([]int{4}) },
			delivered: []client.Stored{stored(4, 5)},
			want:      func(v *Verdict) { v.Duplicated = 1 },
		},
		{
			name: "delivered under two sequences", delivered: []client.Stored{stored(1, 9)},
			want: func(v *Verdict) { v.Duplicated = 1 },
		},
		{
			name: "stored twice, and delivered once so far", audited: []client.Stored{stored(1, 9)},
			want: func(v *Verdict) { v.Duplicated = 1 },
		},
		{
			name: "its acknowledgement never came: neither lost nor doubled", delivered: []client.Stored{stored(5, 6)},
			audited: []client.Stored{stored(5, 6)},
			want:    func(v *Verdict) { v.Delivered = 6 },
		},
		{
			name: "stored out of order", audited: []client.Stored{stored(5,
				6)}, before: func(l *ledger) { l.lastStored = 7 },
			want: func(v *Verdict) { v.OutOfOrder = 1 },
		},
		{
			name: "delivered out of order", before: func(l *ledger) { l.highest = 7 },
			delivered: []client.Stored{stored(5, 6)},
			want:      func(v *Verdict) { v.Delivered, v.OutOfOrder = 6, 1 },
		},
		// An active that was replaced acknowledges message 5 alone, under the sequence that the new one gives to
		// message 4; the consumer has seen both.
		{name: "its sequence was used again", before: func(l *ledger) {
			l.acknowledge(5, client.Receipt{Sequence: 5, Address: "b"})
			l.lastStored = 4
		}, delivered: []client.Stored{stored(5, 5)}, audited: []client.Stored{stored(5, 5)}, want: func(v *Verdict) {
			v.Acknowledged, v.Delivered, v.Lost = 6, 6, 1
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := books(t)
			for _, n := range all {
				require.NoError(t, deliver(l, stored(n, uint64(n+1))))
				require.NoError(t, l.audit(1, stored(n, uint64(n+1))))
			}
			if test.before != nil {
				test.before(l)
			}
			for _, m := range test.delivered {
				require.NoError(t, deliver(l, m))
			}
			for _, m := range test.audited {
				require.NoError(t, l.audit(1, m))
			}
			want, v := good, Verdict{}
			if test.want != nil {
				test.want(&want)
			}
			l.count(&v)
			require.Equal(t, want, v)
		})
	}
}

func deliver(l *ledger, m client.Stored) error {
	_, err := l.deliver(1, m)
	return err
}

// TestLedgerMisses: what was acknowledged and is not delivered, or not stored, or elsewhere, is lost.
func TestLedgerMisses(t *testing.T) {
	l := books(t)
	require.NoError(t, deliver(l, stored(0, 1)))
	require.NoError(t, l.audit(1, stored(0, 1)))
	require.NoError(t, deliver(l, stored(1, 2))) // not stored
	require.NoError(t, l.audit(1, stored(2, 3))) // not delivered
	require.NoError(t, deliver(l, stored(3, 4)))
	require.NoError(t, l.audit(1, stored(3, 8))) // stored elsewhere
	require.NoError(t, deliver(l, stored(4, 8))) // delivered as another one
	require.NoError(t, l.audit(1, stored(4, 5)))
	require.Equal(t, 1, l.left())
	var v Verdict
	l.count(&v)
	require.Equal(t, Verdict{Published: 6, Acknowledged: 5, Delivered: 4, Lost: 4}, v)

	for _, body := range [][]byte{nil, make([]byte, 100), append(makeBody(1, 3), 0), makeBody(2, 3)} {
		m := client.Stored{Sequence: 1, Message: client.Message{Body: body}}
		require.Error(t, deliver(l, m))
		require.Error(t, l.audit(1, m))
	}
	require.ErrorContains(t, deliver(l, stored(6, 1)), "never published")
	require.ErrorContains(t, l.audit(1, stored(6, 1)), "never published")
}

// TestTakeover: answers of the killed node that were still under way do not stop the clock.
func TestTakeover(t *testing.T) {
	l := newLedger()
	l.next()
	l.next()
	taken := l.expectTakeover("a")
	l.acknowledge(0, client.Receipt{Sequence: 1, Address: "a"})
	require.Empty(t, taken)
	l.acknowledge(1, client.Receipt{Sequence: 2, Address: "b"})
	require.Less(t, <-taken, time.Minute)
}

func TestPassed(t *testing.T) {
	good := Verdict{Published: 1, Acknowledged: 1, Delivered: 1, DigestsEqual: true}
	require.True(t, good.Passed())
	for _, spoil := range []func(*Verdict){
		func(v *Verdict) { v.Lost = 1 }, func(v *Verdict) { v.Duplicated = 1 }, func(v *Verdict) { v.OutOfOrder = 1 },
		func(v *Verdict) { v.DigestsEqual = false },
		func(v *Verdict) { v.Published, v.Acknowledged = 0, 0 }, func(v *Verdict) { v.Published = 2 },
	} {
		v := good
		spoil(&v)
		require.False(t, v.Passed())
	}
}
