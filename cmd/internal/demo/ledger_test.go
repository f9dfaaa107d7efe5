// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// stored returns message n with a sequence.
func stored(n int, sequence uint64) client.Stored {
	return client.Stored{Sequence: sequence, Message: client.Message{Body: makeBody(1, n)}}
}

// newFilledLedger returns a ledger with messages 0 to 5. The pair has acknowledged messages 0 to 4; the sequence of
// message n is n+1.
func newFilledLedger(t *testing.T) *ledger {
	t.Helper()
	l := newLedger()
	for i := range 6 {
		require.Equal(t, i, l.next())
	}
	for i := range 5 {
		l.acknowledge(i, client.Receipt{Sequence: uint64(i + 1), LSN: uint64(i + 1), Address: "a"})
	}
	return l
}

// The demo's verdict detects each kind of violation.
func TestLedger(t *testing.T) {
	good := Verdict{Published: 6, Acknowledged: 5, Delivered: 5}
	for _, test := range []struct {
		name               string
		delivered, audited []client.Stored // in addition to the five
		before             func(l *ledger)
		want               func(v *Verdict)
		broken             []historycheck.Rule
	}{
		{name: "no violation"},
		{
			name:      "redelivered before its acknowledgement was confirmed",
			delivered: []client.Stored{stored(4, 5)}, want: func(v *Verdict) { v.Redelivered = 1 },
		},
		{
			name: "redelivered after its acknowledgement was confirmed", before: func(l *ledger) { l.confirm([]uint64{5}) },
			delivered: []client.Stored{stored(4, 5)},
			want:      func(v *Verdict) { v.Redelivered, v.Duplicated = 1, 1 },
			broken:    []historycheck.Rule{historycheck.RuleRedelivered},
		},
		{
			name: "delivered with two sequences", delivered: []client.Stored{stored(1, 9)},
			want:   func(v *Verdict) { v.Redelivered, v.Lost = 1, 1 },
			broken: []historycheck.Rule{historycheck.RuleUncommitted},
		},
		{
			name: "stored twice", audited: []client.Stored{stored(4, 9)}, delivered: []client.Stored{stored(4, 9)},
			want:   func(v *Verdict) { v.Redelivered, v.Duplicated = 1, 1 },
			broken: []historycheck.Rule{historycheck.RuleDuplicate},
		},
		{
			name: "not acknowledged: neither lost nor duplicated", delivered: []client.Stored{stored(5, 6)},
			audited: []client.Stored{stored(5, 6)},
			want:    func(v *Verdict) { v.Delivered = 6 },
		},
		{
			name: "delivered out of order", delivered: []client.Stored{stored(5, 7), stored(6, 6)},
			audited: []client.Stored{stored(5, 7), stored(6, 6)}, before: func(l *ledger) { l.next() },
			want:   func(v *Verdict) { v.Published, v.Delivered, v.OutOfOrder = 7, 7, 2 },
			broken: []historycheck.Rule{historycheck.RuleOrder, historycheck.RuleOrder}, // of the queue, and of the stream
		},
		// A replaced active acknowledges message 5 alone, with the sequence that the new active assigns to message 4.
		{
			name: "sequence assigned to another message", before: func(l *ledger) {
				l.acknowledge(5, client.Receipt{Sequence: 5, LSN: 6, Address: "b"})
			}, want: func(v *Verdict) { v.Acknowledged, v.Lost = 6, 1 },
			broken: []historycheck.Rule{historycheck.RuleLost},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newFilledLedger(t)
			for n := range 5 {
				require.NoError(t, l.deliver(stored(n, uint64(n+1))))
				require.NoError(t, l.audit(stored(n, uint64(n+1))))
			}
			if test.before != nil {
				test.before(l)
			}
			for _, m := range test.delivered {
				require.NoError(t, l.deliver(m))
			}
			for _, m := range test.audited {
				require.NoError(t, l.audit(m))
			}
			want, v := good, Verdict{}
			if test.want != nil {
				test.want(&want)
			}
			l.check(&v)
			var broken []historycheck.Rule
			for _, violation := range v.Violations {
				broken = append(broken, violation.Rule)
			}
			require.Equal(t, test.broken, broken, "%v", v.Violations)
			v.Violations = nil
			require.Equal(t, want, v)
		})
	}
}

// Acknowledged messages that are not delivered, not stored, or stored with another sequence count as lost.
func TestLedgerReportsLoss(t *testing.T) {
	l := newFilledLedger(t)
	require.NoError(t, l.deliver(stored(0, 1)))
	require.NoError(t, l.audit(stored(0, 1)))
	require.NoError(t, l.audit(stored(2, 3))) // not delivered
	require.NoError(t, l.deliver(stored(3, 8)))
	require.NoError(t, l.audit(stored(3, 8))) // stored with another sequence
	require.NoError(t, l.deliver(stored(4, 5)))
	require.NoError(t, l.audit(stored(4, 5)))
	require.Equal(t, 2, l.left()) // message 1 is not stored either
	var v Verdict
	l.check(&v)
	require.Equal(t, 3, v.Lost, "%v", v.Violations)
	require.False(t, v.Passed())

	for _, body := range [][]byte{nil, make([]byte, 100), append(makeBody(1, 3), 0)} {
		m := client.Stored{Sequence: 1, Message: client.Message{Body: body}}
		require.ErrorIs(t, l.deliver(m), historycheck.ErrBody)
		require.ErrorIs(t, l.audit(m), historycheck.ErrBody)
	}
	err := l.deliver(stored(6, 1))
	require.Error(t, err)
	require.Contains(t, err.Error(), "never published")
}

// Late responses of the killed node do not end the measurement.
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

func TestVerdictPassed(t *testing.T) {
	good := Verdict{Published: 1, Acknowledged: 1, Delivered: 1, DigestsEqual: true}
	require.True(t, good.Passed())
	for _, change := range []func(*Verdict){
		func(v *Verdict) { v.add(historycheck.Violation{Rule: historycheck.RuleLost}) },
		func(v *Verdict) { v.add(historycheck.Violation{Rule: historycheck.RulePhantom}) },
		func(v *Verdict) { v.DigestsEqual = false },
		func(v *Verdict) { v.Published, v.Acknowledged = 0, 0 }, func(v *Verdict) { v.Published = 2 },
	} {
		v := good
		change(&v)
		require.False(t, v.Passed())
	}
}
