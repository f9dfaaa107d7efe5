// SPDX-License-Identifier: Apache-2.0

package session

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// apply reads and applies a frame like a broker. It returns the number of affected messages.
func (p *peer) apply(r *wire.Reader, f *wire.Frame) (messages int) {
	if err := r.Next(f); err != nil {
		p.t.Fatal(err)
	}
	if err := p.c.Receive(f, p.now); err != nil {
		p.t.Fatal(err)
	}
	for e, ok := p.c.Next(); ok; e, ok = p.c.Next() {
		switch e := e.(type) {
		case *Delivery:
			e.Link.Settle(e.ID, wire.Accepted{})
			messages++
		case *Disposed:
			messages += len(e.Refs)
		}
	}
	return messages
}

const (
	maxAllocs  = 0.5 // per message, of codec and session together; the fraction allows for concurrent allocations
	measured   = 2000
	bodyOf512B = 512
)

// TestAllocationsOfReceived counts the allocations for a small received message, from its frame to its settlement.
func TestAllocationsOfReceived(t *testing.T) {
	var frames []byte
	p := opened(t, Options{}).manual()
	p.sender("in", 0).Window(1000)
	p.take()
	for id := range measured + 2 {
		tr := &wire.Transfer{Handle: 0, DeliveryID: some(id), DeliveryTag: []byte("tag"), MessageFormat: some(0)}
		frames = wire.AppendFrame(frames, 0, tr, make([]byte, bodyOf512B))
	}
	r := wire.NewReader(bytes.NewReader(frames), 1<<20)
	var f wire.Frame
	out := make([]byte, 0, 1<<20)
	messages := 0
	allocs := testing.AllocsPerRun(measured, func() {
		messages += p.apply(r, &f)
		out = p.c.Output(out)
	})
	require.Equal(t, measured+1, messages)
	t.Logf("%.2f allocations per message", allocs)
	require.LessOrEqual(t, allocs, maxAllocs)
}

// TestAllocationsOfSent counts the allocations for a small sent message that is settled by its own disposition.
func TestAllocationsOfSent(t *testing.T) {
	var frames []byte
	p := opened(t, Options{}).manual()
	l := p.receiver("out", 0)
	p.send(0, credit(0, 0, measured+10))
	p.take()
	for id := range measured + 2 {
		d := &wire.Disposition{
			Role: wire.RoleReceiver, First: uint32(id), Last: uint32(id), Settled: true, State: wire.Accepted{},
		}
		frames = wire.AppendFrame(frames, 0, d, nil)
	}
	r := wire.NewReader(bytes.NewReader(frames), 1<<20)
	var f wire.Frame
	out := make([]byte, 0, 1<<20)
	m := Message{Payload: make([]byte, bodyOf512B)}
	messages := 0
	allocs := testing.AllocsPerRun(measured, func() {
		m.Ref++
		if err := l.Send(&m); err != nil {
			t.Fatal(err)
		}
		messages += p.apply(r, &f)
		out = p.c.Output(out)
	})
	require.Equal(t, measured+1, messages)
	t.Logf("%.2f allocations per message", allocs)
	require.LessOrEqual(t, allocs, maxAllocs)
}

// A message of many frames requires memory of twice its size, for its chunks and for the whole message.
func TestMemoryOfLargeMessage(t *testing.T) {
	const sizeBytes, frameBytes = 32 << 20, 64 << 10
	p := opened(t, Options{}).manual()
	p.sender("in", 0).Window(1)
	p.take()
	var frames []byte
	for sent := 0; sent < sizeBytes; sent += frameBytes {
		tr := &wire.Transfer{DeliveryTag: []byte("tag"), More: sent+frameBytes < sizeBytes}
		if sent == 0 {
			tr.DeliveryID, tr.MessageFormat = some(0), some(0)
		}
		frames = wire.AppendFrame(frames, 0, tr, bytes.Repeat([]byte{byte(sent / frameBytes)}, frameBytes))
	}
	r := wire.NewReader(bytes.NewReader(frames), 1<<20)
	var f wire.Frame
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	var d *Delivery
	for d == nil {
		require.NoError(t, r.Next(&f))
		require.NoError(t, p.c.Receive(&f, p.now))
		for e, ok := p.c.Next(); ok; e, ok = p.c.Next() {
			d, _ = e.(*Delivery)
		}
	}
	runtime.ReadMemStats(&after)
	require.True(t, d.Owned)
	require.Len(t, d.Payload, sizeBytes)
	for i := range sizeBytes / frameBytes {
		require.Equal(t, byte(i), d.Payload[i*frameBytes])
		require.Equal(t, byte(i), d.Payload[(i+1)*frameBytes-1])
	}
	require.Zero(t, p.c.Partial())
	allocated := after.TotalAlloc - before.TotalAlloc
	require.Less(t, allocated, uint64(2*sizeBytes+(4<<20)), "%d MiB", allocated>>20)
}

// BenchmarkReceive and BenchmarkSend measure the time of the operations for which TestAllocationsOfReceived and
// TestAllocationsOfSent count allocations.
func BenchmarkReceive(b *testing.B) {
	p := opened(b, Options{}).manual()
	p.sender("in", 0).Window(1000)
	p.take()
	frame := func(id int) *wire.Frame {
		return &wire.Frame{Body: &wire.Transfer{DeliveryID: some(id), DeliveryTag: []byte("tag")}, Payload: make([]byte, 512)}
	}
	f := frame(0)
	var out []byte
	b.ReportAllocs()
	for id := range b.N {
		f.Body.(*wire.Transfer).DeliveryID.Value = uint32(id)
		if err := p.c.Receive(f, p.now); err != nil {
			b.Fatal(err)
		}
		for e, ok := p.c.Next(); ok; e, ok = p.c.Next() {
			d := e.(*Delivery)
			d.Link.Settle(d.ID, wire.Accepted{})
		}
		if id%32 == 0 {
			out = p.c.Output(out)
		}
	}
}

func BenchmarkSend(b *testing.B) {
	p := opened(b, Options{}).manual()
	l := p.receiver("out", 0)
	f := credit(0, 0, 1<<31-1)
	f.IncomingWindow = 1<<31 - 1
	p.send(0, f)
	m := Message{Payload: make([]byte, 512), Settled: true}
	var out []byte
	b.ReportAllocs()
	for id := range b.N {
		if err := l.Send(&m); err != nil {
			b.Fatal(err)
		}
		if id%32 == 0 {
			out = p.c.Output(out)
		}
	}
}
