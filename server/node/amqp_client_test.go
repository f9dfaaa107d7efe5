// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/test/amqp/wiretest"
)

// amqpPeer is an AMQP client that sends and receives individual frames.
type amqpPeer struct {
	t      *testing.T
	conn   net.Conn
	in     *wire.Reader
	next   uint32       // delivery ID
	kept   []gotMessage // messages received while waiting for another frame
	silent bool         // send no client properties
}

// withAMQP enables AMQP on a free port.
func withAMQP(c *config.Config) { c.AMQP.Listen = "127.0.0.1:0" }

func dialAMQP(t *testing.T, address string) *amqpPeer {
	t.Helper()
	conn, err := dialer(t)(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(testTimeout)))
	return &amqpPeer{t: t, conn: conn, in: wire.NewReader(conn, 1<<20)}
}

func (p *amqpPeer) write(b []byte) {
	p.t.Helper()
	_, err := p.conn.Write(b)
	require.NoError(p.t, err)
}

func (p *amqpPeer) header(id byte) {
	p.t.Helper()
	p.write(wire.AppendProtocolHeader(nil, id))
	got, version, err := p.in.ProtocolHeader()
	require.NoError(p.t, err)
	require.Equal(p.t, id, got)
	require.Equal(p.t, [3]byte{1, 0, 0}, version)
}

// sasl sends the response for a mechanism and returns the outcome of the authentication.
func (p *amqpPeer) sasl(mechanism wire.Symbol, response []byte) wire.SASLCode {
	p.t.Helper()
	p.header(3)
	offered := expect[*wire.SASLMechanisms](p)
	require.Contains(p.t, offered.Mechanisms, wire.Symbol("PLAIN"))
	p.write(wire.AppendSASLFrame(nil, &wire.SASLInit{Mechanism: mechanism, InitialResponse: response}))
	code := expect[*wire.SASLOutcome](p).Code
	if code == wire.SASLOK {
		p.header(0)
	}
	return code
}

func (p *amqpPeer) send(body wire.Performative, payload ...byte) {
	p.t.Helper()
	p.write(wire.AppendFrame(nil, 0, body, payload))
}

// expect reads frames until one has a body of type T, and returns that body. Messages received before it are
// returned by receive.
func expect[T wire.Performative](p *amqpPeer) T {
	p.t.Helper()
	for {
		var f wire.Frame
		require.NoError(p.t, p.in.Next(&f))
		if body, ok := f.Body.(T); ok {
			return body
		}
		if t, ok := f.Body.(*wire.Transfer); ok {
			p.kept = append(p.kept, p.message(t, f.Payload))
		}
	}
}

// open opens a connection with one session as an anonymous client.
func (p *amqpPeer) open(container string) *amqpPeer {
	p.t.Helper()
	require.Equal(p.t, wire.SASLOK, p.sasl("ANONYMOUS", []byte("x")))
	p.begin(container)
	return p
}

func (p *amqpPeer) begin(container string) *wire.Open {
	p.t.Helper()
	p.sendOpen(container)
	p.send(&wire.Begin{IncomingWindow: 1 << 20, OutgoingWindow: 1 << 20, HandleMax: 100})
	open := expect[*wire.Open](p)
	if _, failed := open.Properties.Get(wire.Symbol("amqp:connection-establishment-failed")); !failed {
		expect[*wire.Begin](p)
	}
	return open
}

// sendOpen sends an open frame.
func (p *amqpPeer) sendOpen(container string) {
	p.t.Helper()
	open := &wire.Open{ContainerID: container, MaxFrameSize: 1 << 16, ChannelMax: 10}
	if !p.silent {
		open.Properties = wire.Fields{{Key: wire.Symbol("product"), Value: "QpidJMS"}} // a client that supports redirects
	}
	p.send(open)
}

// expectEOF reads until the connection ends without a close frame. It returns the number of frames that had a
// body of type T.
func expectEOF[T wire.Performative](p *amqpPeer) (frames int) {
	p.t.Helper()
	for {
		var f wire.Frame
		if err := p.in.Next(&f); err != nil {
			require.ErrorIs(p.t, err, io.EOF)
			return frames
		}
		_, closes := f.Body.(*wire.Close)
		require.False(p.t, closes)
		if _, ok := f.Body.(T); ok {
			frames++
		}
	}
}

func openAMQP(t *testing.T, n *testNode) *amqpPeer {
	t.Helper()
	return dialAMQP(t, n.ready.AMQP).open("client")
}

// sender attaches a sending link. It returns the error if the link is refused.
func (p *amqpPeer) sender(handle uint32, target wire.Target) *wire.Error {
	p.t.Helper()
	p.send(&wire.Attach{
		Name: "s" + string(rune('0'+handle)), Handle: handle, Role: wire.RoleSender, SenderSettleMode: wire.SenderMixed,
		Source: &wire.Source{ExpiryPolicy: wire.ExpirySessionEnd}, Target: target,
		InitialDeliveryCount: wire.Some(uint32(0)),
	})
	return p.attached()
}

// receiver attaches a receiving link. It returns the error if the link is refused.
func (p *amqpPeer) receiver(handle uint32, name string, source *wire.Source) *wire.Error {
	p.t.Helper()
	if source != nil && source.ExpiryPolicy == "" {
		source.ExpiryPolicy = wire.ExpirySessionEnd
	}
	p.send(&wire.Attach{
		Name: name, Handle: handle, Role: wire.RoleReceiver, SenderSettleMode: wire.SenderUnsettled, Source: source,
		Target: &wire.Node{Address: "here", ExpiryPolicy: wire.ExpirySessionEnd},
	})
	return p.attached()
}

// attached reads the response to an attach. It returns the error if the link was refused.
func (p *amqpPeer) attached() *wire.Error {
	p.t.Helper()
	a := expect[*wire.Attach](p)
	if a.Role == wire.RoleSender && a.Source == nil || a.Role == wire.RoleReceiver && a.Target == nil {
		d := expect[*wire.Detach](p)
		require.True(p.t, d.Closed)
		require.NotNil(p.t, d.Error)
		return d.Error
	}
	return nil
}

func targetNode(address string, capabilities ...wire.Symbol) *wire.Node {
	return &wire.Node{Address: address, ExpiryPolicy: wire.ExpirySessionEnd, Capabilities: capabilities}
}

// transfer sends a message with one data section.
func (p *amqpPeer) transfer(handle uint32, body string, state wire.DeliveryState) {
	p.t.Helper()
	p.raw(handle, wiretest.AppendData(nil, []byte(body)), state)
}

func (p *amqpPeer) raw(handle uint32, payload []byte, state wire.DeliveryState) {
	p.t.Helper()
	p.send(&wire.Transfer{
		Handle: handle, DeliveryID: wire.Some(p.next), DeliveryTag: []byte{byte(p.next >> 8), byte(p.next)},
		MessageFormat: wire.Some(uint32(0)), State: state,
	}, payload...)
	p.next++
}

// outcome reads the outcome of the last message that was sent.
func (p *amqpPeer) outcome() wire.DeliveryState {
	p.t.Helper()
	d := expect[*wire.Disposition](p)
	require.Equal(p.t, wire.RoleReceiver, d.Role)
	return d.State
}

// credit grants credit to a link.
func (p *amqpPeer) credit(handle, n uint32) {
	p.t.Helper()
	p.send(&wire.Flow{
		NextIncomingID: wire.Some(uint32(0)), IncomingWindow: 1 << 20, OutgoingWindow: 1 << 20,
		Handle: wire.Some(handle), DeliveryCount: wire.Some(uint32(0)), LinkCredit: wire.Some(n),
	})
}

// gotMessage is a received message.
type gotMessage struct {
	id    uint32
	body  string
	count uint32
}

func (p *amqpPeer) receive() gotMessage {
	p.t.Helper()
	if len(p.kept) > 0 {
		m := p.kept[0]
		p.kept = p.kept[1:]
		return m
	}
	for {
		var f wire.Frame
		require.NoError(p.t, p.in.Next(&f))
		if t, ok := f.Body.(*wire.Transfer); ok {
			return p.message(t, f.Payload)
		}
	}
}

func (p *amqpPeer) message(t *wire.Transfer, payload []byte) (m gotMessage) {
	p.t.Helper()
	m.id = t.DeliveryID.Value
	for rest := payload; len(rest) > 0; {
		s, next, err := wire.NextSection(rest)
		require.NoError(p.t, err)
		switch rest = next; s.Code {
		case wire.SectionHeader:
			h, _, err := wire.DecodeValue(s.Value)
			require.NoError(p.t, err)
			if fields, ok := h.(wire.List); ok && len(fields) > 4 {
				m.count, _ = fields[4].(uint32)
			}
		case wire.SectionData:
			data, _, err := wire.DecodeValue(s.Value)
			require.NoError(p.t, err)
			m.body += string(data.([]byte))
		}
	}
	return m
}

// dispose sends the outcome of a message and settles it.
func (p *amqpPeer) dispose(id uint32, state wire.DeliveryState) {
	p.t.Helper()
	p.send(&wire.Disposition{Role: wire.RoleReceiver, First: id, Last: id, Settled: true, State: state})
}
