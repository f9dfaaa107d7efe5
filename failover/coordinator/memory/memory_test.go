// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/memory"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

func TestConformance(t *testing.T) {
	coordtest.RunSimulated(t, func(*testing.T) coordtest.Fixture {
		s := memory.NewServer(300 * time.Millisecond)
		return coordtest.Fixture{
			Exact:   true,
			Connect: func(*testing.T) failover.Coordinator { return s.Connect() },
			Stop:    func(*testing.T) { s.SetDown(true) },
			Start:   func(*testing.T) { s.SetDown(false) },
		}
	})
}

func TestLostReply(t *testing.T) {
	c := memory.NewServer(0).Connect()
	defer c.Close()
	c.LoseNextReply()
	rec := coordtest.SampleRecord("op")
	_, err := c.Swap(t.Context(), 0, rec)
	require.ErrorIs(t, err, failover.ErrUnknownOutcome)
	got, _, err := c.Load(t.Context())
	require.NoError(t, err)
	require.Equal(t, rec, got)
}

func TestLeaseEndsWithoutRenewal(t *testing.T) { synctest.Test(t, testLeaseEndsWithoutRenewal) }

func testLeaseEndsWithoutRenewal(t *testing.T) {
	s := memory.NewServer(200 * time.Millisecond)
	a, b := s.Connect(), s.Connect()
	defer a.Close()
	defer b.Close()
	live := failover.Live{Node: failover.NodeInfo{ID: uuid.New()}, Process: "p"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = a.Announce(t.Context(), live)
	}()
	defer func() { <-done }()
	defer a.Close()
	count := func() int {
		o := <-b.Watch(t.Context())
		return len(o.Live)
	}
	require.Eventually(t, func() bool { return count() == 1 }, time.Minute, time.Millisecond)
	a.SetReachable(false)
	began := time.Now()
	require.Eventually(t, func() bool { return count() == 0 }, time.Minute, time.Millisecond)
	require.LessOrEqual(t, time.Since(began), 201*time.Millisecond)
}

func TestStandalone(t *testing.T) {
	self := failover.NodeInfo{ID: uuid.New(), Name: "a", Address: "h:1"}
	id := failover.Identity{Node: self.ID, Store: uuid.New(), Incarnation: 2}
	c := memory.Standalone(id, self).Connect()
	_, _, err := c.Load(t.Context())
	require.ErrorIs(t, err, failover.ErrNoRecord, "an empty store begins a new history")
	require.NoError(t, c.Close())

	id.PairID = uuid.New()
	id.Fence, id.End = failover.Fence{Config: 7, Term: 3}, lsn.Position{Term: 3, LSN: 9}
	c = memory.Standalone(id, self).Connect()
	defer c.Close()
	rec, _, err := c.Load(t.Context())
	require.NoError(t, err)
	require.NoError(t, rec.Validate())
	require.Equal(t, id.Fence, rec.Fence())
	require.Equal(t, []failover.Member{id.Member()}, rec.InSync)
}
