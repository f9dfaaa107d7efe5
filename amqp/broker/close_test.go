// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"net"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	"github.com/lockstep-mq/lockstep/test/amqp/wiretest"
)

// attachSender attaches a link on which the peer sends, and waits until the server grants credit.
func (p *peer) attachSender(handle uint32, target wire.Target) {
	p.t.Helper()
	p.write(wire.AppendFrame(nil, 0, &wire.Attach{
		Name: "s" + strconv.Itoa(int(handle)), Handle: handle, Role: wire.RoleSender, Source: &wire.Source{},
		SenderSettleMode: wire.SenderMixed, Target: target, InitialDeliveryCount: wire.Some(uint32(0)),
	}, nil))
	require.True(p.t, until[*wire.Flow](p))
}

// transfers encodes n messages with consecutive numbers from first on.
func transfers(handle, first uint32, n int, settled bool, state wire.DeliveryState) (b []byte) {
	for i := range uint32(n) {
		id := first + i
		b = wire.AppendFrame(b, 0, &wire.Transfer{
			Handle: handle, DeliveryID: wire.Some(id), DeliveryTag: []byte(strconv.Itoa(int(id))),
			MessageFormat: wire.Some(uint32(0)), Settled: wire.Some(settled), State: state,
		}, wiretest.AppendData(nil, []byte(strconv.Itoa(int(id)))))
	}
	return b
}

// attachReceiver attaches a link on which the peer receives, and grants credit.
func (p *peer) attachReceiver(handle uint32, source *wire.Source, flow *wire.Flow) {
	p.t.Helper()
	p.write(wire.AppendFrame(nil, 0, &wire.Attach{
		Name: "r" + strconv.Itoa(int(handle)), Handle: handle, Role: wire.RoleReceiver, Source: source,
		Target: &wire.Node{Address: "here"},
	}, nil))
	require.True(p.t, until[*wire.Attach](p))
	p.flow(handle, flow)
}

func (p *peer) flow(handle uint32, flow *wire.Flow) {
	p.t.Helper()
	flow.NextIncomingID, flow.Handle = wire.Some(uint32(0)), wire.Some(handle)
	flow.IncomingWindow, flow.OutgoingWindow = 1<<30, 100
	p.write(wire.AppendFrame(nil, 0, flow, nil))
}

// next reads frames up to one with a body of type T, and returns the body; nil if the connection ends first.
func next[T wire.Performative](p *peer) (body T) {
	for {
		var f wire.Frame
		if p.in.Next(&f) != nil {
			return body
		}
		if b, ok := f.Body.(T); ok {
			return b
		}
	}
}

// Messages sent before the end of a link, session or connection are stored when the client receives the response.
func TestMessagesBeforeEndAreStored(t *testing.T) {
	const count = 600
	for name, c := range map[string]struct {
		last     wire.Performative
		answered func(*peer) bool
	}{
		"detach": {&wire.Detach{Handle: 0, Closed: true}, until[*wire.Detach]},
		"end":    {&wire.End{}, until[*wire.End]},
		"close":  {&wire.Close{}, until[*wire.Close]},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newStore("q")
				s, _, stop := serveFor(t, n, inMemory)
				defer stop()
				p := dial(t, s, "c")
				p.attachSender(0, &wire.Node{Address: "q"})
				p.write(wire.AppendFrame(transfers(0, 0, count, true, nil), 0, c.last, nil))
				<-n.called
				close(n.hold)
				require.True(t, c.answered(p))
				require.Len(t, n.stored("q"), count)
			})
		})
	}
}

// Messages sent before the client breaks the connection are stored.
func TestMessagesBeforeDisconnectAreStored(t *testing.T) {
	const count = 600
	for name, disconnect := range map[string]func(*net.TCPConn) error{
		"half-close": (*net.TCPConn).CloseWrite, "close": (*net.TCPConn).Close,
	} {
		t.Run(name, func(t *testing.T) {
			n := newStore("q")
			s, _, stop := serveFor(t, n, func(*Options) {})
			defer stop()
			p := dial(t, s, "c")
			p.attachSender(0, &wire.Node{Address: "q"})
			p.write(transfers(0, 0, count, true, nil))
			<-n.called
			raw, ok := p.conn.(*net.TCPConn)
			require.True(t, ok)
			require.NoError(t, disconnect(raw))
			require.Eventually(t, func() bool { // the end is read
				left := false
				for _, c := range s.all(false) {
					c.locked(func() { left = c.leaving })
				}
				return left
			}, testTimeout, time.Millisecond)
			close(n.hold)
			require.Eventually(t, func() bool { return len(n.stored("q")) == count }, testTimeout, time.Millisecond)
			require.Eventually(t, func() bool { return len(s.all(false)) == 0 }, testTimeout, time.Millisecond)
		})
	}
}

// Acknowledgements sent before the end of a link, session or connection are durable when the client receives the
// response. Unsettled messages are answered before the detach.
func TestAcksBeforeEndAreDurable(t *testing.T) {
	for name, c := range map[string]struct {
		last     wire.Performative
		answered func(*peer) bool
	}{
		"detach": {&wire.Detach{Handle: 1, Closed: true}, until[*wire.Detach]},
		"end":    {&wire.End{}, until[*wire.End]},
		"close":  {&wire.Close{}, until[*wire.Close]},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newStore("q")
				n.queues["q"] = []string{"a", "b"}
				s, _, stop := serveFor(t, n, inMemory)
				defer stop()
				p := dial(t, s, "c")
				p.attachReceiver(1, &wire.Source{Address: "q"}, &wire.Flow{LinkCredit: wire.Some(uint32(1))})
				d := next[*wire.Transfer](p)
				require.NotNil(t, d)
				b := wire.AppendFrame(nil, 0, &wire.Disposition{
					Role: wire.RoleReceiver, First: d.DeliveryID.Value, Last: d.DeliveryID.Value, Settled: true,
					State: wire.Accepted{},
				}, nil)
				p.write(wire.AppendFrame(b, 0, c.last, nil))
				<-n.called
				close(n.hold)
				require.True(t, c.answered(p))
				n.mu.Lock()
				defer n.mu.Unlock()
				require.Equal(t, []uint64{1}, n.acked)
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		n := newStore("q")
		s, _, stop := serveFor(t, n, inMemory)
		defer stop()
		p := dial(t, s, "c")
		p.attachSender(0, &wire.Node{Address: "q"})
		p.write(wire.AppendFrame(transfers(0, 0, 1, false, nil), 0, &wire.Detach{Handle: 0, Closed: true}, nil))
		<-n.called
		close(n.hold)
		d := next[*wire.Disposition](p)
		require.NotNil(t, d)
		require.Equal(t, wire.Accepted{}, d.State)
		require.True(t, until[*wire.Detach](p))
	})
}

// A transaction that was discharged before the close is committed.
func TestDischargeBeforeCloseIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStore("q")
		s, _, stop := serveFor(t, n, inMemory)
		defer stop()
		p := dial(t, s, "c")
		p.attachSender(0, &wire.Coordinator{})
		p.attachSender(1, &wire.Node{Address: "q"})
		id := p.declare(0, 0)
		b := transfers(1, 1, 3, true, &wire.TransactionalState{TxnID: id})
		b = append(b, discharge(0, 4, id)...)
		p.write(wire.AppendFrame(b, 0, &wire.Close{}, nil))
		<-n.called
		close(n.hold)
		require.True(t, until[*wire.Close](p))
		require.Equal(t, []string{"1", "2", "3"}, n.stored("q"))
	})
}

// declare declares a transaction and returns its ID.
func (p *peer) declare(handle, delivery uint32) []byte {
	p.t.Helper()
	p.write(wire.AppendFrame(nil, 0, &wire.Transfer{
		Handle: handle, DeliveryID: wire.Some(delivery), DeliveryTag: []byte{1}, MessageFormat: wire.Some(uint32(0)),
	}, wiretest.Declare()))
	d := next[*wire.Disposition](p)
	require.NotNil(p.t, d)
	declared, ok := d.State.(*wire.Declared)
	require.True(p.t, ok)
	return append([]byte(nil), declared.TxnID...)
}

func discharge(handle, delivery uint32, id []byte) []byte {
	return wire.AppendFrame(nil, 0, &wire.Transfer{
		Handle: handle, DeliveryID: wire.Some(delivery), DeliveryTag: []byte{2}, MessageFormat: wire.Some(uint32(0)),
	}, wiretest.Discharge(id, false))
}

// A node that loses its role reports the outcome of received messages before it closes the connection.
func TestOutcomesBeforeRoleLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStore("q")
		var mu sync.Mutex
		role, changed := Role{Active: true}, make(chan struct{})
		s, _, stop := serveFor(t, n, func(o *Options) {
			inMemory(o)
			o.Role = func() (Role, <-chan struct{}) {
				mu.Lock()
				defer mu.Unlock()
				return role, changed
			}
		})
		defer stop()
		p := dialAs(t, s, "c", wire.Fields{{Key: wire.Symbol("product"), Value: "QpidJMS"}})
		p.attachSender(0, &wire.Node{Address: "q"})
		p.write(transfers(0, 0, 1, false, nil))
		<-n.called
		synctest.Wait()
		mu.Lock()
		role = Role{ActiveAddress: "other:5672"}
		close(changed)
		changed = make(chan struct{})
		mu.Unlock()
		synctest.Wait() // the node closes the connection
		close(n.hold)
		d := next[*wire.Disposition](p)
		require.NotNil(t, d)
		require.Equal(t, wire.Accepted{}, d.State)
		closed := next[*wire.Close](p)
		require.NotNil(t, closed)
		require.Equal(t, session.ConnectionRedirect, closed.Error.Condition)
	})
}

// A node does not wait for a successor in its pair if another site has become the primary.
func TestCloseWithoutSuccessor(t *testing.T) {
	for name, c := range map[string]struct {
		role Role
		wait time.Duration
	}{
		"failover": {Role{}, closeLimit},
		"replica":  {Role{Replica: true}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				role, changed := Role{Active: true}, make(chan struct{})
				s, _, stop := serveFor(t, newStore(), func(o *Options) {
					inMemory(o)
					o.Role = func() (Role, <-chan struct{}) {
						mu.Lock()
						defer mu.Unlock()
						return role, changed
					}
				})
				defer stop()
				p := dialAs(t, s, "c", wire.Fields{{Key: wire.Symbol("product"), Value: "QpidJMS"}})
				require.True(t, until[*wire.Begin](p))
				mu.Lock()
				role = c.role
				close(changed)
				changed = make(chan struct{})
				mu.Unlock()
				began := time.Now()
				closed := next[*wire.Close](p)
				require.NotNil(t, closed)
				require.Equal(t, session.ConnectionForced, closed.Error.Condition)
				require.Equal(t, c.wait, time.Since(began))
			})
		})
	}
}

// A client that violates the protocol is disconnected without delay, and its earlier messages are stored.
func TestMessagesBeforeInvalidFrame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStore("q").open()
		s, _, stop := serveFor(t, n, inMemory)
		defer stop()
		p := dial(t, s, "c")
		p.attachSender(0, &wire.Node{Address: "q"})
		begin := time.Now()
		p.write(append(transfers(0, 0, 10, true, nil), "no frame"...))
		closed := next[*wire.Close](p)
		require.NotNil(t, closed)
		require.NotNil(t, closed.Error)
		require.Error(t, p.in.Next(&wire.Frame{}), "the connection ends")
		require.Less(t, time.Since(begin), time.Second)
		require.Len(t, n.stored("q"), 10)
	})
}

// A detach is answered after a timeout if the node does not confirm the acknowledgements.
func TestUnconfirmedDetach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newStore("q")
		n.queues["q"] = []string{"a"}
		s, _, stop := serveFor(t, n, inMemory)
		defer stop()
		p := dial(t, s, "c")
		p.attachReceiver(1, &wire.Source{Address: "q"}, &wire.Flow{LinkCredit: wire.Some(uint32(1))})
		d := next[*wire.Transfer](p)
		require.NotNil(t, d)
		begin := time.Now()
		b := wire.AppendFrame(nil, 0, &wire.Disposition{
			Role: wire.RoleReceiver, First: d.DeliveryID.Value, Last: d.DeliveryID.Value, Settled: true,
			State: &wire.Rejected{},
		}, nil)
		p.write(wire.AppendFrame(b, 0, &wire.Detach{Handle: 1, Closed: true}, nil))
		go func() { // heartbeats of the client
			for range 2 {
				<-time.After(10 * time.Second)
				_, _ = p.conn.Write(wire.AppendFrame(nil, 0, nil, nil))
			}
		}()
		require.True(t, until[*wire.Detach](p))
		require.Equal(t, finishLimit, time.Since(begin))
		close(n.hold)
	})
}
