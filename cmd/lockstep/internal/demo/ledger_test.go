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

// TestLedger: the demo's verdict must be able to fail.
func TestLedger(t *testing.T) {
	l := newLedger()
	for i := range 6 {
		require.Equal(t, i, l.next())
	}
	for i := range 5 {
		l.acknowledge(i, client.Receipt{Sequence: uint64(i + 1), Address: "a"})
	}
	deliver := func(n int, sequence uint64) {
		got, err := l.deliver(1, stored(n, sequence))
		require.NoError(t, err)
		require.Equal(t, n, got)
	}
	deliver(0, 1)
	deliver(0, 1) // once more before its acknowledgement was confirmed: at least once
	l.confirm([]int{0})
	deliver(0, 1) // and after it: a duplicate
	deliver(1, 2)
	deliver(1, 9) // stored twice: a duplicate
	deliver(2, 8) // under another sequence than was acknowledged: lost
	deliver(3, 4)
	deliver(5, 6) // delivered, and its acknowledgement never came: neither lost nor doubled
	require.Equal(t, 1, l.left())
	var v Verdict
	l.count(&v)
	require.Equal(t, Verdict{Published: 6, Acknowledged: 5, Delivered: 5, Lost: 2, Duplicated: 2, Redelivered: 1}, v)

	for _, body := range [][]byte{nil, make([]byte, 100), append(makeBody(1, 3), 0), makeBody(2, 3)} {
		_, err := l.deliver(1, client.Stored{Sequence: 1, Message: client.Message{Body: body}})
		require.Error(t, err)
	}
	_, err := l.deliver(1, stored(6, 1))
	require.ErrorContains(t, err, "never published")
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
		func(v *Verdict) { v.Lost = 1 }, func(v *Verdict) { v.Duplicated = 1 }, func(v *Verdict) { v.DigestsEqual = false },
		func(v *Verdict) { v.Published, v.Acknowledged = 0, 0 }, func(v *Verdict) { v.Published = 2 },
	} {
		v := good
		spoil(&v)
		require.False(t, v.Passed())
	}
}
