// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/lsn"
)

// handshake connects as standby b and sends a valid hello, changed by the test.
func (w *world) handshake(b, a *node, change ...func(*replication.StandbyMessage)) replication.ActiveStream {
	t := w.t
	t.Helper()
	conn, err := w.dialer().Dial(t.Context(), a.address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	s, err := conn.Replicate(t.Context())
	require.NoError(t, err)
	id := b.store.Identity()
	hello := &replication.StandbyMessage{Config: id.Fence.Config, Term: id.Fence.Term, Hello: &replication.Hello{
		Pair: id.PairID, Member: b.member(), LogEnd: b.store.End(), Applied: b.store.Applied(),
		TermEnds: b.store.TermEnds(),
		Protocol: replication.ProtocolVersion,
	}}
	for _, c := range change {
		c(hello)
	}
	require.NoError(t, s.Send(hello))
	return s
}

// The active rejects invalid messages from a peer with an error and keeps running.
func TestActiveRejectsInvalidStandby(t *testing.T) {
	refused := func(name string, test func(t *testing.T, w *world, a, b *node)) {
		simulated(t, name, func(t *testing.T) {
			w := newWorld(t)
			a, b := w.node("a"), w.node("b")
			a.lead(1, 1, nil)
			a.createQueue()
			test(t, w, a, b)
			b.follow(a)
			requireEqual(a, b)
		})
	}
	cases := map[string]struct {
		change func(m *replication.StandbyMessage, a *node)
		want   error
	}{
		"another pair": {
			func(m *replication.StandbyMessage, _ *node) { m.Hello.Pair = uuid.New() },
			replication.ErrOtherPair,
		},
		"another protocol": {
			func(m *replication.StandbyMessage, _ *node) { m.Hello.Protocol = 99 },
			replication.ErrProtocol,
		},
		"no hello": {func(m *replication.StandbyMessage, _ *node) { m.Hello = nil }, replication.ErrProtocol},
		"a copied data directory": {
			func(m *replication.StandbyMessage, a *node) { m.Hello.Member.Node = a.member().Node },
			replication.ErrProtocol,
		},
		"a higher fence": {func(m *replication.StandbyMessage, _ *node) { m.Config = 77 }, replication.ErrAhead},
	}
	for name, c := range cases {
		refused(name, func(t *testing.T, w *world, a, b *node) {
			s := w.handshake(b, a, func(m *replication.StandbyMessage) { c.change(m, a) })
			_, err := s.Recv()
			require.ErrorIs(t, err, c.want)
		})
	}
	refused("an ack of records that were never sent", func(t *testing.T, w *world, a, b *node) {
		s := w.handshake(b, a)
		_, err := s.Recv()
		require.NoError(t, err)
		require.NoError(t, s.Send(&replication.StandbyMessage{
			Config: 1, Term: 1,
			Durable: lsn.Position{Term: 1, LSN: 2, Chain: 3},
		}))
		require.Eventually(t, func() bool {
			_, err := s.Recv()
			return errors.Is(err, replication.ErrProtocol)
		}, waitLimit, time.Millisecond)
	})
	refused("no message", func(t *testing.T, w *world, a, _ *node) {
		conn, err := w.dialer().Dial(t.Context(), a.address)
		require.NoError(t, err)
		s, err := conn.Replicate(t.Context())
		require.NoError(t, err)
		_, err = s.Recv()
		require.ErrorIs(t, err, replication.ErrSilent)
	})
}

// fakeActive is an active that sends predefined messages.
type fakeActive struct {
	send     []*replication.ActiveMessage
	received chan *replication.StandbyMessage
	// connections is the number of Replicate calls.
	connections atomic.Int64
}

func (f *fakeActive) Replicate(ctx context.Context, s replication.StandbyStream) error {
	f.connections.Add(1)
	for _, m := range f.send {
		if err := s.Send(m); err != nil {
			return err
		}
	}
	for {
		m, err := s.Recv()
		if err != nil {
			return err
		}
		select {
		case f.received <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeActive) FetchSnapshot(
	context.Context, replication.SnapshotRequest, func(*replication.SnapshotChunk) error,
) error {
	return errors.New("no snapshot here")
}

// Records that fail verification are neither appended nor acknowledged.
func TestFollowerRejectsInvalidRecords(t *testing.T) {
	good, end := frameAll(lsn.Position{}, 1, [][]byte{payload(1, "", 0, []byte("x")), payload(1, "", 0, []byte("y"))})
	flipped := append([]byte{}, good...)
	flipped[len(flipped)/2] ^= 4
	helloResponse := &replication.ActiveMessage{
		Config: 1, Term: 1,
		HelloResponse: &replication.HelloResponse{Protocol: replication.ProtocolVersion},
	}
	records := func(m replication.ActiveMessage) *replication.ActiveMessage {
		m.Config, m.Term = 1, 1
		return &m
	}
	cases := map[string]*replication.ActiveMessage{
		"a flipped bit": records(replication.ActiveMessage{Records: flipped, Last: end}),
		"a torn frame":  records(replication.ActiveMessage{Records: good[:len(good)-8], Last: end}),
		"another last": records(replication.ActiveMessage{
			Records: good,
			Last:    lsn.Position{Term: 1, LSN: 2, Chain: 1},
		}),
		"a gap": records(replication.ActiveMessage{
			Records:  good,
			Previous: lsn.Position{Term: 1, LSN: 7, Chain: 1}, Last: end,
		}),
		"a lower term":            {Config: 1, Term: 0, Records: good, Last: end},
		"a later term":            {Config: 1, Term: 1, Records: mustFrames(2), Last: mustEnd(2)},
		"garbage":                 records(replication.ActiveMessage{Records: []byte("garbage"), Last: end}),
		"a second hello response": {Config: 0, Term: 1, HelloResponse: &replication.HelloResponse{}},
	}
	for name, m := range cases {
		simulated(t, name, func(t *testing.T) {
			w := newWorld(t)
			b := w.node("b")
			fake := &fakeActive{
				send:     []*replication.ActiveMessage{helloResponse, m},
				received: make(chan *replication.StandbyMessage, 1000),
			}
			l := w.net.Listen("fake", func() (replication.Service, error) { return fake, nil })
			defer l.Close()
			b.followVia(w.dialer(), "fake")
			await[replication.FollowerLost](b, nil)
			for _, e := range b.seen() {
				_, failed := e.(replication.Failed)
				require.False(t, failed, "the message must not reach the store: %+v", e)
			}
			pause(10 * time.Second)
			require.Less(t, fake.connections.Load(), int64(220), "reconnects are delayed")
			b.stop()
			require.True(t, b.store.End().IsZero())
			for len(fake.received) > 0 {
				require.True(t, (<-fake.received).Durable.IsZero())
			}
		})
	}
	simulated(t, "valid records are accepted", func(t *testing.T) {
		w := newWorld(t)
		b := w.node("b")
		fake := &fakeActive{
			send: []*replication.ActiveMessage{
				helloResponse,
				records(replication.ActiveMessage{Records: good, Last: end}),
			},
			received: make(chan *replication.StandbyMessage, 1000),
		}
		l := w.net.Listen("fake", func() (replication.Service, error) { return fake, nil })
		defer l.Close()
		b.followVia(w.dialer(), "fake")
		require.Eventually(t, func() bool { return (<-fake.received).Durable == end }, waitLimit, time.Millisecond)
		require.Zero(t, b.store.Applied().LSN, "durable, but not reported as committed (INV-2)")
	})
}

func mustFrames(term uint64) []byte {
	b, _ := frameAll(lsn.Position{}, term, [][]byte{payload(1, "", 0, nil)})
	return b
}

func mustEnd(term uint64) lsn.Position {
	_, end := frameAll(lsn.Position{}, term, [][]byte{payload(1, "", 0, nil)})
	return end
}
