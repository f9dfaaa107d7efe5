// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package hostile

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	"github.com/lockstep-mq/lockstep/test/amqp/wiretest"
)

// amqpAttacks returns the attacks on the AMQP 1.0 port.
func amqpAttacks() []attack {
	return []attack{
		{"amqp garbage", 4, garbage},
		{"amqp http1", 4, http1},
		{"amqp slow header", 100, slowHeader},
		{"amqp silence", 100, silence},
		{"amqp invalid frames", 4, garbageInside},
		{"amqp oversized frame", 4, oversizedAMQPFrame},
		{"amqp empty values", 4, sendEmptyValues},
		{"amqp unknown channels", 4, unknownChannels},
		{"amqp begin flood", 2, beginFlood},
		{"amqp attach flood", 2, attachFlood},
		{"amqp flow flood", 2, flowFlood},
		{"amqp disposition flood", 2, dispositionFlood},
		{"amqp partial messages", 32, partialMessages},
		{"amqp declare flood", 2, declareFlood},
		{"amqp never-reading consumer", 32, neverReadsAMQP},
		{"amqp closed window", 96, neverReadsAMQP},
	}
}

// joined returns a peer with an open connection, or nil.
func (a *attacker) joined(ctx context.Context, name string) *peer {
	c := a.dial(ctx, name)
	if c == nil {
		return nil
	}
	p := newPeer(c)
	if err := p.open(fmt.Sprint("hostile-", rand.Uint64())); err != nil {
		a.record(name, "connection not opened: "+end(ctx, err))
		_ = c.Close()
		pause(ctx, 10*time.Millisecond)
		return nil
	}
	return p
}

// watched reads all data that the node sends during an attack. ended receives a description of the connection's end.
func (p *peer) watched(ctx context.Context) (ended <-chan string) {
	c := make(chan string, 1)
	go func() { c <- p.reaction(ctx) }()
	return c
}

// until repeats an action until the node ends the connection, or the duration of a flood has elapsed. It returns a
// description of the end.
func until(ctx context.Context, ended <-chan string, once func(i int) error) string {
	stop := time.After(flooding)
	for i := 0; ; i++ {
		select {
		case how := <-ended:
			return how
		case <-stop:
			return "left"
		default:
		}
		if err := once(i); err != nil {
			if ended == nil { // the connection is not read
				return end(ctx, err)
			}
			select {
			case how := <-ended:
				return how
			case <-time.After(testTimeout):
				return end(ctx, err)
			}
		}
	}
}

// slowHeader sends the 8 bytes of the protocol header one by one.
func slowHeader(ctx context.Context, a *attacker, name string, _ int) {
	c := a.dial(ctx, name)
	if c == nil {
		return
	}
	defer func() { _ = c.Close() }()
	p := newPeer(c)
	var err error
	for _, b := range wire.AppendProtocolHeader(nil, wire.ProtocolSASL) {
		if _, err = c.Write([]byte{b}); err != nil {
			break
		}
		pause(ctx, 500*time.Millisecond)
	}
	a.record(name, p.reaction(ctx))
}

// silence stops sending before the connection is open, at a point that depends on the worker.
func silence(ctx context.Context, a *attacker, name string, worker int) {
	c := a.dial(ctx, name)
	if c == nil {
		return
	}
	defer func() { _ = c.Close() }()
	p := newPeer(c)
	var err error
	switch worker % 3 {
	case 0:
		err = p.header(wire.ProtocolSASL)
	case 1:
		err = p.header(wire.ProtocolAMQP)
	case 2:
		err = p.handshake()
	}
	if err != nil {
		a.record(name, end(ctx, err))
		return
	}
	a.record(name, p.reaction(ctx))
}

// garbageInside repeatedly sends a transfer frame in which random bytes were replaced.
func garbageInside(ctx context.Context, a *attacker, name string, _ int) {
	p := a.joined(ctx, name)
	if p == nil {
		return
	}
	defer func() { _ = p.Close() }()
	frame := wire.AppendFrame(nil, 0, &wire.Transfer{DeliveryTag: []byte("tag")}, make([]byte, 100))
	for range 1 + rand.IntN(8) {
		frame[8+rand.IntN(len(frame)-8)] = byte(rand.Uint32())
	}
	ended := p.watched(ctx)
	a.record(name, until(ctx, ended, func(int) error {
		_, err := p.Write(frame)
		return err
	}))
}

// oversizedAMQPFrame announces a frame of 1 GiB, and sends as much of it as possible.
func oversizedAMQPFrame(ctx context.Context, a *attacker, name string, _ int) {
	p := a.joined(ctx, name)
	if p == nil {
		return
	}
	defer func() { _ = p.Close() }()
	head := wire.AppendFrame(nil, 0, &wire.Transfer{}, nil)
	binary.BigEndian.PutUint32(head, 1<<30)
	ended := p.watched(ctx)
	a.record(name, until(ctx, ended, func(i int) error {
		if i == 0 {
			_, err := p.Write(head)
			return err
		}
		_, err := p.Write(make([]byte, 1<<16))
		return err
	}))
}

// sendEmptyValues opens a connection with properties that are much larger when they are decoded.
func sendEmptyValues(ctx context.Context, a *attacker, name string, _ int) {
	c := a.dial(ctx, name)
	if c == nil {
		return
	}
	defer func() { _ = c.Close() }()
	p := newPeer(c)
	if err := p.handshake(); err != nil {
		a.record(name, end(ctx, err))
		return
	}
	emptyValues := make(wire.List, 20_000)
	for i := range emptyValues {
		emptyValues[i] = wire.Array{nil, nil, nil, nil} // changed to 255 elements below
	}
	frame := wire.AppendFrame(nil, 0, &wire.Open{
		ContainerID: "empty", Properties: wire.Fields{{Key: wire.Symbol("p"), Value: emptyValues}},
	}, nil)
	for i := 0; i+3 < len(frame); i++ {
		if string(frame[i:i+4]) == "\xe0\x02\x04\x40" {
			frame[i+2] = 255
		}
	}
	if _, err := c.Write(frame); err != nil {
		a.record(name, end(ctx, err))
		return
	}
	a.record(name, p.reaction(ctx))
}

// unknownChannels sends on channels without a session.
func unknownChannels(ctx context.Context, a *attacker, name string, _ int) {
	p := a.joined(ctx, name)
	if p == nil {
		return
	}
	defer func() { _ = p.Close() }()
	ended := p.watched(ctx)
	a.record(name, until(ctx, ended, func(i int) error {
		return p.send(uint16(1+i%60_000), &wire.Transfer{More: true}, make([]byte, 1000))
	}))
}

// beginFlood begins a session on every channel, or repeatedly begins and ends a session on one channel.
func beginFlood(ctx context.Context, a *attacker, name string, worker int) {
	p := a.joined(ctx, name)
	if p == nil {
		return
	}
	defer func() { _ = p.Close() }()
	ended := p.watched(ctx)
	a.record(name, until(ctx, ended, func(i int) error {
		if worker%2 == 0 {
			return p.begin(uint16(1 + i))
		}
		if err := p.begin(1); err != nil {
			return err
		}
		return p.send(1, &wire.End{}, nil)
	}))
}

// attachFlood attaches a link with every handle, or repeatedly attaches and detaches a link with one handle.
func attachFlood(ctx context.Context, a *attacker, name string, worker int) {
	p := a.joined(ctx, name)
	if p == nil {
		return
	}
	defer func() { _ = p.Close() }()
	ended := p.watched(ctx)
	a.record(name, until(ctx, ended, func(i int) error {
		role := wire.Role(i%2 == 0)
		if worker%2 == 0 {
			return p.attach(uint32(i), fmt.Sprint("l", i), role, a.plan.Queue)
		}
		if err := p.attach(0, fmt.Sprint("l", i), role, a.plan.Queue); err != nil {
			return err
		}
		return p.send(0, &wire.Detach{Closed: true}, nil)
	}))
}

// flowFlood repeatedly grants and revokes credit, and requests flow responses. Half of the workers do not read the
// responses.
func flowFlood(ctx context.Context, a *attacker, name string, worker int) {
	p := a.joined(ctx, name)
	if p == nil {
		return
	}
	defer func() { _ = p.Close() }()
	if p.attach(0, "l", wire.RoleReceiver, a.plan.Queue) != nil {
		return
	}
	var ended <-chan string
	if worker%2 == 0 {
		ended = p.watched(ctx)
	}
	flow := &wire.Flow{
		NextIncomingID: wire.Some(uint32(0)), IncomingWindow: 1, OutgoingWindow: math.MaxUint32, Handle: wire.Some(uint32(0)),
		DeliveryCount: wire.Some(uint32(0)), Echo: true,
	}
	a.record(name, until(ctx, ended, func(i int) error {
		flow.LinkCredit = wire.Some(uint32(i % 2 * math.MaxUint32))
		flow.Drain = i%3 == 0
		return p.send(0, flow, nil)
	}))
}

// dispositionFlood repeatedly settles all possible deliveries.
func dispositionFlood(ctx context.Context, a *attacker, name string, _ int) {
	p := a.joined(ctx, name)
	if p == nil {
		return
	}
	defer func() { _ = p.Close() }()
	ended := p.watched(ctx)
	a.record(name, until(ctx, ended, func(i int) error {
		return p.send(0, &wire.Disposition{
			Role: i%2 == 0, First: uint32(i) << 20, Last: uint32(i)<<20 - 1, Settled: i%3 == 0, State: wire.Accepted{},
		}, nil)
	}))
}

// partialMessages starts large messages on many links, and completes none of them.
func partialMessages(ctx context.Context, a *attacker, name string, _ int) {
	p := a.joined(ctx, name)
	if p == nil {
		return
	}
	defer func() { _ = p.Close() }()
	const links = 100
	for i := range uint32(links) {
		if err := p.attach(i, fmt.Sprint("l", i), wire.RoleSender, a.plan.Queue); err != nil {
			a.record(name, end(ctx, err))
			return
		}
	}
	ended := p.watched(ctx)
	pause(ctx, 100*time.Millisecond) // until the node grants credit
	part := make([]byte, 64<<10)
	for i := 0; i < 100*links; i++ {
		t := &wire.Transfer{Handle: uint32(i % links), More: true}
		if i < links {
			t.DeliveryID, t.DeliveryTag = wire.Some(uint32(i)), []byte{byte(i)}
			t.MessageFormat = wire.Some(uint32(0))
		}
		if err := p.send(0, t, part); err != nil {
			break
		}
	}
	a.record(name, <-ended)
}

// declareFlood declares transactions, and discharges none of them.
func declareFlood(ctx context.Context, a *attacker, name string, _ int) {
	p := a.joined(ctx, name)
	if p == nil {
		return
	}
	defer func() { _ = p.Close() }()
	err := p.send(0, &wire.Attach{
		Name: "t", SenderSettleMode: wire.SenderMixed, Source: &wire.Source{ExpiryPolicy: wire.ExpirySessionEnd},
		Target: &wire.Coordinator{}, InitialDeliveryCount: wire.Some(uint32(0)),
	}, nil)
	if err != nil {
		a.record(name, end(ctx, err))
		return
	}
	ended := p.watched(ctx)
	declare := wiretest.Declare()
	a.record(name, until(ctx, ended, func(i int) error {
		if i == 0 {
			pause(ctx, 50*time.Millisecond) // until the node grants credit
		}
		return p.send(0, &wire.Transfer{
			DeliveryID: wire.Some(uint32(i)), DeliveryTag: binary.BigEndian.AppendUint32(nil, uint32(i)),
			MessageFormat: wire.Some(uint32(0)),
		}, declare)
	}))
}

// neverReadsAMQP consumes a subscription with maximum credit, but reads no data, or grants a session window of no
// frames.
func neverReadsAMQP(ctx context.Context, a *attacker, name string, worker int) {
	p := a.joined(ctx, name)
	if p == nil {
		return
	}
	defer func() { _ = p.Close() }()
	window := uint32(math.MaxUint32)
	if name == "amqp closed window" {
		window = 0
	}
	subscription := a.plan.Subscriptions[worker%len(a.plan.Subscriptions)]
	err := p.send(0, &wire.Attach{
		Name: subscription + "|" + fmt.Sprint(worker), Role: wire.RoleReceiver, SenderSettleMode: wire.SenderMixed,
		Source: &wire.Source{
			Address: a.plan.Queue, ExpiryPolicy: wire.ExpiryNever, Durable: wire.DurabilityUnsettled,
			Capabilities: []wire.Symbol{"topic", "shared", "global"},
		}, Target: &wire.Node{ExpiryPolicy: wire.ExpirySessionEnd},
	}, nil)
	if err == nil {
		_, err = awaited[*wire.Attach](p)
	}
	if err == nil {
		err = p.send(0, &wire.Flow{
			NextIncomingID: wire.Some(uint32(0)), IncomingWindow: window, OutgoingWindow: math.MaxUint32,
			Handle: wire.Some(uint32(0)), DeliveryCount: wire.Some(uint32(0)), LinkCredit: wire.Some(uint32(1 << 30)),
		}, nil)
	}
	if err == nil {
		<-ctx.Done()
	}
	a.record(name, end(ctx, err))
}
