// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Only the time in which an active acknowledges alone is counted. The time from a kill until the pair is in sync again
// is counted separately.
func TestCopies(t *testing.T) {
	s := newCopies()
	at := s.last
	sample := func(active string, inSync int) {
		at = at.Add(10 * time.Millisecond)
		st := &pb.GetStatusResponse{Pair: &pb.PairStatus{}}
		for i := range 2 {
			st.Pair.Nodes = append(st.Pair.Nodes, &pb.NodeStatus{InSync: i < inSync})
		}
		s.observeSince(at, progress.Snapshot{At: at, Active: active, Nodes: map[string]*pb.GetStatusResponse{"a:1": st}})
	}
	sample("a:1", 2)
	sample("", 0) // no node acknowledges
	sample("a:1", 1)
	s.except(true)
	sample("a:1", 1)
	sample("a:1", 1)
	s.except(false)
	// The nodes were queried before the end of the excepted period, and responded after it.
	late := &pb.GetStatusResponse{Pair: &pb.PairStatus{Nodes: []*pb.NodeStatus{{InSync: true}, {}}}}
	at = at.Add(10 * time.Millisecond)
	s.observeSince(s.ended.Add(-time.Millisecond),
		progress.Snapshot{At: at, Active: "a:1", Nodes: map[string]*pb.GetStatusResponse{"a:1": late}})
	sample("a:1", 2)
	planned, killed, samples := s.totals()
	require.Equal(t, 10*time.Millisecond, planned)
	require.Equal(t, 30*time.Millisecond, killed)
	require.Equal(t, 7, samples)
}

// A publish that is slow because of a kill is counted separately.
func TestPublishPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // with a fake clock
		l := newLedger()
		start := time.Now()
		pass := func(d time.Duration) { <-time.After(d) }
		first := l.next()
		pass(20 * time.Millisecond)
		l.acknowledge(first, client.Receipt{Sequence: 1, Address: "a"})
		short := l.next()
		pass(time.Millisecond)
		l.acknowledge(short, client.Receipt{Sequence: 2, Address: "a"})
		l.expectTakeover("a")
		met, late := l.next(), l.next()
		pass(time.Minute)
		l.acknowledge(met, client.Receipt{Sequence: 3, Address: "b"})
		l.settled()
		pass(time.Hour)
		// late was published before the pair was in sync again
		l.acknowledge(late, client.Receipt{Sequence: 4, Address: "b"})
		after := l.next()
		pass(2 * time.Millisecond)
		l.acknowledge(after, client.Receipt{Sequence: 5, Address: "b"})
		planned, at, killed := l.pauses()
		require.Equal(t, 20*time.Millisecond, planned)
		require.Equal(t, start.Add(20*time.Millisecond), at)
		require.Equal(t, time.Hour+time.Minute, killed)
	})
}
