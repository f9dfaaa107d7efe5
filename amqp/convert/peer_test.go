// SPDX-License-Identifier: Apache-2.0

package convert_test

import (
	"net"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

const testTimeout = time.Minute

// peer is a minimal AMQP client: one session, and complete encoded messages.
type peer struct {
	t      *testing.T
	conn   net.Conn
	reader *wire.Reader
	out    []byte
	handle uint32
	next   uint32 // delivery ID
}

// connect opens a connection and a session.
func connect(t *testing.T, address, container string) *peer {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: testTimeout}).DialContext(t.Context(), "tcp", address)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	p := &peer{t: t, conn: conn, reader: wire.NewReader(conn, 1<<20)}
	p.write(wire.AppendProtocolHeader(nil, 0))
	_, _, err = p.reader.ProtocolHeader()
	require.NoError(t, err)
	p.send(&wire.Open{ContainerID: container, MaxFrameSize: 1 << 20, ChannelMax: 10}, nil)
	p.send(&wire.Begin{IncomingWindow: 1 << 20, OutgoingWindow: 1 << 20, HandleMax: 100}, nil)
	await[*wire.Begin](p, nil)
	return p
}

func (p *peer) write(b []byte) {
	p.t.Helper()
	require.NoError(p.t, p.conn.SetDeadline(time.Now().Add(testTimeout)))
	_, err := p.conn.Write(b)
	require.NoError(p.t, err)
}

func (p *peer) send(body wire.Performative, payload []byte) {
	p.t.Helper()
	p.out = wire.AppendFrame(p.out[:0], 0, body, payload)
	p.write(p.out)
}

// await reads frames until a frame with a body of type T satisfies the condition.
func await[T wire.Performative](p *peer, wanted func(T, []byte) bool) (T, []byte) {
	p.t.Helper()
	var f wire.Frame
	for {
		require.NoError(p.t, p.conn.SetDeadline(time.Now().Add(testTimeout)))
		require.NoError(p.t, p.reader.Next(&f))
		if body, ok := f.Body.(T); ok && (wanted == nil || wanted(body, f.Payload)) {
			return body, slices.Clone(f.Payload)
		}
		switch body := f.Body.(type) {
		case *wire.Detach:
			require.Nil(p.t, body.Error)
		case *wire.End:
			require.Fail(p.t, "the session has ended", "%v", body.Error)
		case *wire.Close:
			require.Fail(p.t, "the connection has ended", "%v", body.Error)
		}
	}
}

// sender attaches a sending link and returns its handle.
func (p *peer) sender(queue string) uint32 {
	p.t.Helper()
	p.handle++
	p.send(&wire.Attach{
		Name: "to " + queue, Handle: p.handle, Role: wire.RoleSender, SenderSettleMode: wire.SenderMixed,
		Source: &wire.Source{Address: "here"}, Target: &wire.Node{Address: queue}, InitialDeliveryCount: wire.Some(uint32(0)),
	}, nil)
	await(p, func(f *wire.Flow, _ []byte) bool { return f.Handle.Set && f.LinkCredit.Or(0) > 0 })
	return p.handle
}

// publish sends a message and returns its outcome.
func (p *peer) publish(handle uint32, payload []byte) wire.DeliveryState {
	p.t.Helper()
	id := p.next
	p.next++
	p.send(&wire.Transfer{
		Handle: handle, DeliveryID: wire.Some(id), DeliveryTag: []byte{byte(id >> 8), byte(id)},
		MessageFormat: wire.Some(uint32(0)),
	}, payload)
	d, _ := await(p, func(d *wire.Disposition, _ []byte) bool {
		return d.Role == wire.RoleReceiver && d.First <= id && id <= d.Last
	})
	require.True(p.t, d.Settled)
	return d.State
}

// receiver attaches a receiving link with credit. The response's source has no address if the link is refused.
func (p *peer) receiver(source *wire.Source, credit uint32) (handle uint32, attached *wire.Source) {
	p.t.Helper()
	p.handle++
	name := "from " + string(rune('a'+p.handle))
	p.send(&wire.Attach{
		Name: name, Handle: p.handle, Role: wire.RoleReceiver, SenderSettleMode: wire.SenderUnsettled, Source: source,
		Target: &wire.Node{Address: "here"},
	}, nil)
	a, _ := await(p, func(a *wire.Attach, _ []byte) bool { return a.Name == name })
	if a.Source != nil && credit > 0 {
		p.send(&wire.Flow{
			IncomingWindow: 1 << 20, OutgoingWindow: 1 << 20, NextIncomingID: wire.Some(uint32(0)),
			Handle: wire.Some(p.handle), DeliveryCount: wire.Some(uint32(0)), LinkCredit: wire.Some(credit),
		}, nil)
	}
	return p.handle, a.Source
}

// receive receives one message and reports its outcome.
func (p *peer) receive(state wire.DeliveryState) []byte {
	p.t.Helper()
	var payload []byte
	var id uint32
	await(p, func(f *wire.Transfer, part []byte) bool {
		id = f.DeliveryID.Or(id)
		payload = append(payload, part...)
		return !f.More
	})
	p.send(&wire.Disposition{Role: wire.RoleReceiver, First: id, Last: id, Settled: true, State: state}, nil)
	return payload
}
