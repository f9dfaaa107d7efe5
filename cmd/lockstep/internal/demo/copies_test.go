package demo

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/rolling"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// TestCopies: only the time counts in which an active acknowledges alone, and that of a kill is counted apart.
func TestCopies(t *testing.T) {
	s := newCopies()
	at := s.last
	sample := func(active string, inSync int) {
		at = at.Add(10 * time.Millisecond)
		st := &pb.GetStatusResponse{Pair: &pb.PairStatus{}}
		for i := range 2 {
			st.Pair.Nodes = append(st.Pair.Nodes, &pb.NodeStatus{InSync: i < inSync})
		}
		s.observe(rolling.Snapshot{At: at, Active: active, Nodes: map[string]*pb.GetStatusResponse{"a:1": st}})
	}
	sample("a:1", 2)
	sample("", 0) // nobody acknowledges
	sample("a:1", 1)
	s.except(true)
	sample("a:1", 1)
	sample("a:1", 1)
	s.except(false)
	sample("a:1", 2)
	planned, killed, samples := s.totals()
	require.Equal(t, 10*time.Millisecond, planned)
	require.Equal(t, 20*time.Millisecond, killed)
	require.Equal(t, 6, samples)
}

// TestPauses: what takes long because of a kill is not counted with the rest.
func TestPauses(t *testing.T) {
	l := newLedger()
	publish := func(ago time.Duration) int {
		n := l.next()
		l.records[n].published = time.Now().Add(-ago)
		return n
	}
	l.acknowledge(publish(20*time.Millisecond), client.Receipt{Sequence: 1, Address: "a"})
	l.expectTakeover("a")
	l.acknowledge(publish(time.Minute), client.Receipt{Sequence: 2, Address: "b"})
	late := publish(time.Hour)
	l.settled()
	l.acknowledge(late, client.Receipt{Sequence: 3, Address: "b"})
	l.acknowledge(publish(-time.Millisecond), client.Receipt{Sequence: 4, Address: "b"})
	planned, at, killed := l.pauses()
	require.InDelta(t, 20*time.Millisecond, planned, float64(time.Second))
	require.WithinDuration(t, time.Now(), at, time.Minute)
	require.InDelta(t, time.Hour, killed, float64(time.Second))
}
