// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	"github.com/lockstep-mq/lockstep/test/amqp/wiretest"
)

const largeBytes, frameBytes = 2560 << 10, 60 << 10

func takesLarge(o *Options) {
	inMemory(o)
	o.MaxMessageBytes = 3 << 20
}

// large returns the frames of a large message.
func large() (frames [][]byte) {
	payload := wiretest.AppendData(nil, []byte(strings.Repeat("x", largeBytes)))
	for first := true; len(payload) > 0; first = false {
		n := min(frameBytes, len(payload))
		t := &wire.Transfer{Handle: 0, More: n < len(payload)}
		if first {
			t.DeliveryID, t.DeliveryTag, t.MessageFormat = wire.Some(uint32(0)), []byte{1}, wire.Some(uint32(0))
		}
		frames = append(frames, wire.AppendFrame(nil, 0, t, payload[:n]))
		payload = payload[n:]
	}
	return frames
}

// Connections with large messages above the limit are read one after the other, and none is closed.
func TestLargeMessagesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, clients = 4 << 20, 10
		n := newStore("q")
		s, _, stop := serveFor(t, n, takesLarge)
		defer stop()
		s.held.limit = limit
		peers := make([]*peer, clients)
		for i := range peers {
			peers[i] = dial(t, s, "c"+string(rune('0'+i)))
			peers[i].attachSender(0, &wire.Node{Address: "q"})
		}
		accepted := make(chan bool, clients)
		for _, p := range peers {
			go func() {
				for _, frame := range large() {
					if _, err := p.conn.Write(frame); err != nil {
						accepted <- false
						return
					}
				}
				d := next[*wire.Disposition](p)
				accepted <- d != nil && d.State == wire.Accepted{}
			}()
		}
		synctest.Wait()
		s.held.mu.Lock()
		total := s.held.total
		s.held.mu.Unlock()
		require.LessOrEqual(t, total, limit+largeBytes+clients*frameBytes+maxEnvelope)
		<-time.After(5 * time.Second) // the node is slow
		close(n.hold)
		for range peers {
			require.True(t, <-accepted)
		}
		require.Len(t, n.stored("q"), clients)
		require.Len(t, s.all(false), clients)
		synctest.Wait()
		require.Zero(t, s.held.total)
	})
}

// A connection that stalls within a large message is closed if other connections wait for it.
func TestBlockingConnectionIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStore("q").open()
		s, _, stop := serveFor(t, n, takesLarge)
		defer stop()
		s.held.limit = largeBytes
		stalls := dial(t, s, "stalls")
		stalls.attachSender(0, &wire.Node{Address: "q"})
		frames := large()
		for _, frame := range frames[:len(frames)-1] {
			stalls.write(frame)
		}
		synctest.Wait()
		p := dial(t, s, "c")
		p.attachSender(0, &wire.Node{Address: "q"})
		begin := time.Now()
		go func() {
			for _, frame := range frames {
				_, _ = p.conn.Write(frame)
			}
		}()
		c := next[*wire.Close](stalls)
		require.NotNil(t, c)
		require.Equal(t, session.ResourceLimitExceeded, c.Error.Condition)
		require.Equal(t, stallLimit, time.Since(begin))
		d := next[*wire.Disposition](p)
		require.NotNil(t, d)
		require.Equal(t, wire.Accepted{}, d.State)
	})
}

// A client is not disconnected as idle while its connection is not read because the node does not store its messages.
func TestUnreadConnectionIsNotIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStore("q")
		s, _, stop := serveFor(t, n, takesLarge)
		defer stop()
		p := dial(t, s, "c")
		require.NoError(t, p.conn.SetDeadline(time.Time{}))
		p.attachSender(0, &wire.Node{Address: "q"})
		payload := wiretest.AppendData(nil, make([]byte, 100<<10))
		for i := range uint32(25) { // more than maxPending
			p.write(wire.AppendFrame(nil, 0, &wire.Transfer{
				DeliveryID: wire.Some(i), DeliveryTag: []byte{byte(i)}, MessageFormat: wire.Some(uint32(0)),
			}, payload))
		}
		<-time.After(3 * idleTimeOut)
		close(n.hold)
		d := next[*wire.Disposition](p)
		require.NotNil(t, d)
		require.Equal(t, wire.Accepted{}, d.State)
	})
}
