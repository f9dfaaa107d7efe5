// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package hostile

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	"github.com/lockstep-mq/lockstep/test/amqp/wiretest"
)

// peer is an AMQP 1.0 client that sends arbitrary frames, valid or not.
type peer struct {
	net.Conn
	*wire.Reader

	out []byte
}

// newPeer creates a peer on a connection. The peer can read frames of the maximum size that a node sends.
func newPeer(c net.Conn) *peer { return &peer{Conn: c, Reader: wire.NewReader(c, 1<<20)} }

func (p *peer) send(channel uint16, body wire.Performative, payload []byte) error {
	p.out = wire.AppendFrame(p.out[:0], channel, body, payload)
	_, err := p.Write(p.out)
	return err
}

// header sends a protocol header, and reads the node's header.
func (p *peer) header(id byte) error {
	if _, err := p.Write(wire.AppendProtocolHeader(nil, id)); err != nil {
		return err
	}
	got, _, err := p.ProtocolHeader()
	if err == nil && got != id {
		err = fmt.Errorf("node responded with protocol %d", got)
	}
	return err
}

// handshake executes the SASL exchange and the protocol handshake that precede the open performative.
func (p *peer) handshake() error {
	if err := p.header(wire.ProtocolSASL); err != nil {
		return err
	}
	if _, err := awaited[*wire.SASLMechanisms](p); err != nil {
		return err
	}
	if _, err := p.Write(wire.AppendSASLFrame(nil, &wire.SASLInit{Mechanism: "ANONYMOUS"})); err != nil {
		return err
	}
	outcome, err := awaited[*wire.SASLOutcome](p)
	if err == nil && outcome.Code != wire.SASLOK {
		err = fmt.Errorf("SASL outcome %d", outcome.Code)
	}
	if err != nil {
		return err
	}
	return p.header(wire.ProtocolAMQP)
}

// open executes the handshake, and opens a connection with a session on channel 0.
func (p *peer) open(container string) error {
	if err := p.handshake(); err != nil {
		return err
	}
	err := p.send(0, &wire.Open{ContainerID: container, MaxFrameSize: 1 << 20, ChannelMax: math.MaxUint16}, nil)
	if err == nil {
		_, err = awaited[*wire.Open](p)
	}
	if err == nil {
		err = p.begin(0)
	}
	if err == nil {
		_, err = awaited[*wire.Begin](p)
	}
	return err
}

func (p *peer) begin(channel uint16) error {
	return p.send(channel, &wire.Begin{
		IncomingWindow: math.MaxUint32, OutgoingWindow: math.MaxUint32, HandleMax: 4095,
	}, nil)
}

// attach creates a link that sends to or receives from an address.
func (p *peer) attach(handle uint32, name string, role wire.Role, address string) error {
	a := &wire.Attach{
		Name: name, Handle: handle, Role: role, SenderSettleMode: wire.SenderMixed,
		Source: &wire.Source{ExpiryPolicy: wire.ExpirySessionEnd}, Target: &wire.Node{ExpiryPolicy: wire.ExpirySessionEnd},
	}
	if role == wire.RoleSender {
		a.Target = &wire.Node{Address: address, ExpiryPolicy: wire.ExpirySessionEnd}
		a.InitialDeliveryCount = wire.Some(uint32(0))
	} else {
		a.Source.Address = address
	}
	return p.send(0, a, nil)
}

// awaited reads until it receives a performative of type T. A close, end or detach by the node is an error.
func awaited[T wire.Performative](p *peer) (T, error) {
	var f wire.Frame
	for {
		if err := p.Next(&f); err != nil {
			var none T
			return none, err
		}
		if got, ok := f.Body.(T); ok {
			return got, nil
		}
		if err := closeError(f.Body); err != nil {
			var none T
			return none, err
		}
	}
}

// closeError returns the error in a frame that ends a connection, session or link.
func closeError(body wire.Performative) error {
	var reason *wire.Error
	label := ""
	switch body := body.(type) {
	case *wire.Close:
		reason, label = body.Error, "close"
	case *wire.End:
		reason, label = body.Error, "end"
	case *wire.Detach:
		reason, label = body.Error, "detach"
	default:
		return nil
	}
	if reason == nil {
		return errors.New(label + " without an error")
	}
	return errors.New(label + " with " + string(reason.Condition))
}

// reaction reads until the node ends the connection, and returns a description of the end.
func (p *peer) reaction(ctx context.Context) string {
	var f wire.Frame
	for {
		if err := p.Next(&f); err != nil {
			return end(ctx, errors.Unwrap(err))
		}
		if body, ok := f.Body.(*wire.Close); ok {
			return closeError(body).Error()
		}
	}
}

// payload returns a message with the given body.
func payload(body []byte) []byte { return wiretest.AppendData(nil, body) }

// publisher publishes messages synchronously: it waits until each message is accepted.
func (g *legitimate) publisher(ctx context.Context, address string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	p := newPeer(c)
	_ = c.SetDeadline(time.Now().Add(bound))
	if err := p.open("good"); err != nil {
		return err
	}
	if err := p.attach(0, "good", wire.RoleSender, "good"); err != nil {
		return err
	}
	if _, err := awaited[*wire.Flow](p); err != nil {
		return err
	}
	body := payload(make([]byte, 512))
	for id := uint32(0); ctx.Err() == nil; id++ {
		start := time.Now()
		_ = c.SetDeadline(start.Add(bound))
		err := p.send(0, &wire.Transfer{
			DeliveryID: wire.Some(id), DeliveryTag: []byte{byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)},
			MessageFormat: wire.Some(uint32(0)),
		}, body)
		if err != nil {
			return err
		}
		settled, err := awaited[*wire.Disposition](p)
		if err != nil {
			return err
		}
		if _, ok := settled.State.(wire.Accepted); !ok || settled.First != id {
			return fmt.Errorf("message %d was settled as %d: %v", id, settled.First, settled.State)
		}
		g.mu.Lock()
		g.took = append(g.took, time.Since(start))
		g.mu.Unlock()
		pause(ctx, 2*time.Millisecond)
	}
	return nil
}
