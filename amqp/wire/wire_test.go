// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	"github.com/lockstep-mq/lockstep/test/amqp/wiretest"
)

var long = strings.Repeat("x", 300)

// values returns values of every type and every encoding length.
func values() []any {
	return []any{
		nil, true, false, uint8(7), uint16(700), uint32(0), uint32(255), uint32(256), uint64(0), uint64(255),
		uint64(math.MaxUint64), int8(-7), int16(-700), int32(-128), int32(-129), int32(math.MaxInt32), int64(127),
		int64(128), int64(math.MinInt64), float32(1.5), math.Inf(-1), wire.Char('é'), wire.Timestamp(-1),
		wire.UUID{1, 2, 3, 15: 16},
		wire.Decimal("1234"), wire.Decimal("12345678"), wire.Decimal("1234567890123456"),
		[]byte{},
		[]byte("b"), []byte(long), "", "é", long, wire.Symbol("s"), wire.Symbol(long),
		wire.List{},
		wire.List{uint32(1), "two", nil, wire.List{true}},
		wire.List{long, long},
		wire.Map{},
		wire.Map{{wire.Symbol("k"), "v"}, {"l", wire.Map{{uint64(1), long}}}},
		wire.Array{},
		wire.Array{wire.Symbol("a"), wire.Symbol(long)},
		wire.Array{uint32(1), uint32(2)},
		wire.Array{true, false},
		wire.Array{wire.List{uint32(1)}, wire.List{}},
		wire.Array{wire.Map{{"a", "b"}}},
		wire.Array{wire.Array{int32(1)}, wire.Array{int32(2), int32(3)}},
		wire.Array{nil, nil},
		wire.Array{wire.Described{Descriptor: uint64(9), Value: "x"}, wire.Described{Descriptor: uint64(9), Value: "y"}},
		wire.Described{Descriptor: wire.Symbol("apache.org:selector-filter:string"), Value: "a = 1"},
		wire.Map{{wire.Symbol("lifetime-policy"), wire.Described{Descriptor: uint64(0x2b), Value: wire.List{}}}},
		wire.Array{
			wire.Described{Descriptor: uint64(9), Value: wire.Described{Descriptor: wire.Symbol("s"), Value: wire.List{"x"}}},
			wire.Described{Descriptor: uint64(9), Value: wire.Described{Descriptor: wire.Symbol("s"), Value: wire.List{}}},
		},
	}
}

// A decoded value equals the value that was encoded.
func TestValues(t *testing.T) {
	for _, v := range values() {
		b := wire.AppendValue([]byte("before"), v)
		got, rest, err := wire.DecodeValue(append(b[6:], "after"...))
		require.NoError(t, err, "%#v", v)
		require.Equal(t, v, got)
		require.Equal(t, "after", string(rest))
	}
}

// Handwritten encodings from part 1 of the specification are decoded and encoded correctly.
func TestEncodings(t *testing.T) {
	for _, c := range []struct {
		hex string
		v   any
	}{
		{"40", nil},
		{"5600", false},
		{"5601", true},
		{"43", uint32(0)},
		{"7000000001", uint32(1)},
		{"44", uint64(0)},
		{"5310", uint64(16)},
		{"8000000000000000ff", uint64(255)},
		{"54ff", int32(-1)},
		{"71ffffffff", int32(-1)},
		{"55fe", int64(-2)},
		{"81fffffffffffffffe", int64(-2)},
		{"7300000041", wire.Char('A')},
		{"83000001422dd3f9e0", wire.Timestamp(0x1422dd3f9e0)},
		{"a003010203", []byte{1, 2, 3}},
		{"b000000001ff", []byte{255}},
		{"a10548656c6c6f", "Hello"},
		{"b10000000548656c6c6f", "Hello"},
		{"a30161", wire.Symbol("a")},
		{"45", wire.List{}},
		{"c003024142", wire.List{true, false}},
		{"d000000006000000024142", wire.List{true, false}},
		{"c1050250015002", wire.Map{{uint8(1), uint8(2)}}},
		{"e0040250" + "0102", wire.Array{uint8(1), uint8(2)}},
		{"f00000000700000002" + "500102", wire.Array{uint8(1), uint8(2)}},
		{"e0020341", wire.Array{true, true, true}},
		{"7200000000", float32(0)},
		{"823ff8000000000000", 1.5},
		{"9800112233445566778899aabbccddeeff", wire.UUID{
			0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff,
		}},
		{"7422500001", wire.Decimal("\x22\x50\x00\x01")},
		{"c10100", wire.Map{}},
		{"d10000000400000000", wire.Map{}},
		{"e00d02" + "00a301" + "75" + "a1" + "0161" + "0462636465", wire.Array{
			wire.Described{Descriptor: wire.Symbol("u"), Value: "a"},
			wire.Described{Descriptor: wire.Symbol("u"), Value: "bcde"},
		}},
		{"e00702" + "c0" + "020141" + "0100", wire.Array{wire.List{true}, wire.List{}}},
		{"e00902" + "e0" + "03015001" + "020040", wire.Array{wire.Array{uint8(1)}, wire.Array{}}},
		{"00a30161a10162", wire.Described{Descriptor: wire.Symbol("a"), Value: "b"}},
		{"e009020053095302" + "0102", nil}, // see below: a wrong size
	} {
		b, err := hex.DecodeString(c.hex)
		require.NoError(t, err)
		v, rest, err := wire.DecodeValue(b)
		if c.v == nil && len(c.hex) > 2 {
			require.Error(t, err)
			continue
		}
		require.NoError(t, err, c.hex)
		require.Equal(t, c.v, v, c.hex)
		require.Empty(t, rest, c.hex)
	}
}

// Invalid values are rejected, without allocating memory for their claimed size.
func TestInvalidValues(t *testing.T) {
	for name, b := range map[string][]byte{
		"empty":                      {},
		"no constructor":             {0x01},
		"no constructor of one byte": {0x57, 0},
		"no constructor of 16 bytes": append([]byte{0x99}, make([]byte, 16)...),
		"a boolean of 2":             {0x56, 2},
		"a truncated uint":           {0x70, 0, 0},
		"a string that ends early":   {0xa1, 5, 'a'},
		"4 GiB of binary":            {0xb0, 0xff, 0xff, 0xff, 0xff},
		"4 G elements":               {0xd0, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff},
		"4 G elements of no bytes":   {0xf0, 0, 0, 0, 5, 0xff, 0xff, 0xff, 0xff, 0x41},
		"a list with trailing bytes": {0xc0, 3, 1, 0x41, 0x41},
		"a map of three":             {0xc1, 4, 3, 0x41, 0x41, 0x41},
		"an array without a type":    {0xe0, 1, 0},
		"an array of no known type":  {0xe0, 2, 0, 0x30},
		"a string that is not UTF-8": {0xa1, 1, 0xff},
		"a symbol that is not ASCII": {0xa3, 2, 0xc3, 0xa9},
		"an invalid code point":      {0x73, 0, 0x11, 0, 0},
		"a surrogate code point":     {0x73, 0, 0, 0xd8, 0},
		"a million lists in lists":   bytes.Repeat([]byte{0x00}, 1_000_000),
		"a million descriptors":      bytes.Repeat([]byte{0x00, 0x41}, 1_000_000),
		"nested arrays":              bytes.Repeat([]byte{0xe0, 0xff, 0x01}, 100),
	} {
		_, _, err := wire.DecodeValue(b)
		var e *wire.Error
		require.ErrorAs(t, err, &e, name)
		require.Equal(t, wire.ConditionDecode, e.Condition, name)
	}
}

// performatives returns performatives with all fields set and with none.
func performatives() []wire.Performative {
	fields := wire.Fields{{Key: wire.Symbol("p"), Value: "v"}}
	symbols := []wire.Symbol{"a", "b"}
	e := &wire.Error{Condition: "amqp:not-found", Description: "no such queue", Info: fields}
	source := &wire.Source{
		Address: "q", Durable: wire.DurabilityUnsettled, ExpiryPolicy: wire.ExpiryNever, Timeout: 9, Dynamic: true,
		DynamicNodeProperties: fields, DistributionMode: "copy",
		Filter:         wire.Map{{wire.Symbol("f"), wire.Described{Descriptor: uint64(1), Value: "x"}}},
		DefaultOutcome: &wire.Modified{DeliveryFailed: true, UndeliverableHere: true, MessageAnnotations: fields},
		Outcomes:       symbols, Capabilities: symbols,
	}
	node := &wire.Node{
		Address: "q", Durable: wire.DurabilityConfiguration, ExpiryPolicy: wire.ExpiryLinkDetach, Timeout: 9, Dynamic: true,
		DynamicNodeProperties: fields, Capabilities: symbols,
	}
	return []wire.Performative{
		&wire.Open{MaxFrameSize: math.MaxUint32, ChannelMax: math.MaxUint16},
		&wire.Open{
			ContainerID: "c", Hostname: "h", MaxFrameSize: 512, ChannelMax: 0, IdleTimeOut: 1000, OutgoingLocales: symbols,
			IncomingLocales: symbols, OfferedCapabilities: symbols, DesiredCapabilities: symbols, Properties: fields,
		},
		&wire.Begin{HandleMax: math.MaxUint32},
		&wire.Begin{
			RemoteChannel: wire.Some(uint16(3)), NextOutgoingID: 1, IncomingWindow: 2, OutgoingWindow: 3, HandleMax: 4,
			OfferedCapabilities: symbols, DesiredCapabilities: symbols, Properties: fields,
		},
		&wire.Attach{Name: "l", SenderSettleMode: wire.SenderMixed},
		&wire.Attach{
			Name: long, Handle: 7, Role: wire.RoleReceiver, SenderSettleMode: wire.SenderSettled,
			ReceiverSettleMode: wire.ReceiverSecond, Source: source, Target: node,
			Unsettled: wire.Map{
				{"\xff\x00", wire.Accepted{}}, {"2", nil}, {"3", &wire.Received{SectionNumber: 1, SectionOffset: 2}},
			},
			IncompleteUnsettled: true, InitialDeliveryCount: wire.Some(uint32(0)), MaxMessageSize: 1 << 40,
			OfferedCapabilities: symbols, DesiredCapabilities: symbols, Properties: fields,
		},
		&wire.Attach{Name: "t", SenderSettleMode: wire.SenderMixed, Target: &wire.Coordinator{Capabilities: symbols}},
		&wire.Attach{
			Name: "t", SenderSettleMode: wire.SenderMixed, Source: &wire.Source{ExpiryPolicy: wire.ExpirySessionEnd},
			Target: &wire.Node{ExpiryPolicy: wire.ExpirySessionEnd},
		},
		&wire.Flow{},
		&wire.Flow{
			NextIncomingID: wire.Some(uint32(1)), IncomingWindow: 2, NextOutgoingID: 3, OutgoingWindow: 4,
			Handle: wire.Some(uint32(0)), DeliveryCount: wire.Some(uint32(math.MaxUint32)), LinkCredit: wire.Some(uint32(7)),
			Available: wire.Some(uint32(8)), Drain: true, Echo: true, Properties: fields,
		},
		&wire.Transfer{},
		&wire.Transfer{
			Handle: 1, DeliveryID: wire.Some(uint32(2)), DeliveryTag: []byte("tag"), MessageFormat: wire.Some(uint32(0)),
			Settled: wire.Some(false), More: true, ReceiverSettleMode: wire.Some(wire.ReceiverSecond),
			State:  &wire.TransactionalState{TxnID: []byte{1}, Outcome: &wire.Rejected{Error: e}},
			Resume: true, Aborted: true, Batchable: true,
		},
		&wire.Disposition{},
		&wire.Disposition{
			Role: wire.RoleReceiver, First: 1, Last: 9, Settled: true, State: &wire.Declared{TxnID: []byte("t")},
			Batchable: true,
		},
		&wire.Disposition{First: 5, Last: 5, State: wire.Released{}},
		&wire.Detach{Handle: 1},
		&wire.Detach{Handle: 1, Closed: true, Error: e},
		&wire.End{}, &wire.End{Error: e}, &wire.Close{}, &wire.Close{Error: e},
	}
}

func sasl() []wire.Performative {
	return []wire.Performative{
		&wire.SASLMechanisms{Mechanisms: []wire.Symbol{"PLAIN", "ANONYMOUS"}},
		&wire.SASLInit{Mechanism: "PLAIN", InitialResponse: []byte("\x00u\x00p"), Hostname: "h"},
		&wire.SASLChallenge{Challenge: []byte("c")}, &wire.SASLResponse{Response: []byte("r")},
		&wire.SASLOutcome{Code: wire.SASLAuth}, &wire.SASLOutcome{AdditionalData: []byte("d")},
	}
}

// Appended frames are read back unchanged, regardless of the sizes of the reads.
func TestFrames(t *testing.T) {
	var stream []byte
	stream = wire.AppendProtocolHeader(stream, wire.ProtocolSASL)
	for _, p := range sasl() {
		stream = wire.AppendSASLFrame(stream, p)
	}
	for i, p := range performatives() {
		stream = wire.AppendFrame(stream, uint16(i), p, []byte(long[:i]))
	}
	stream = wire.AppendFrame(stream, 0, nil, nil)
	stream = wire.AppendFrame(stream, 1, &wire.Transfer{}, bytes.Repeat([]byte("y"), 100_000))
	for name, in := range map[string]io.Reader{
		"in one read": bytes.NewReader(stream), "byte by byte": iotest.OneByteReader(bytes.NewReader(stream)),
		"half by half": iotest.HalfReader(bytes.NewReader(stream)),
	} {
		t.Run(name, func(t *testing.T) {
			r := wire.NewReader(in, 1<<20)
			id, version, err := r.ProtocolHeader()
			require.NoError(t, err)
			require.Equal(t, byte(wire.ProtocolSASL), id)
			require.Equal(t, [3]byte{1, 0, 0}, version)
			var f wire.Frame
			for _, p := range sasl() {
				require.NoError(t, r.Next(&f))
				require.True(t, f.SASL)
				require.Equal(t, p, f.Body)
			}
			for i, p := range performatives() {
				require.NoError(t, r.Next(&f))
				require.Equal(t, uint16(i), f.Channel)
				require.Equal(t, p, f.Body)
				require.Equal(t, long[:i], string(f.Payload))
			}
			require.NoError(t, r.Next(&f))
			require.Nil(t, f.Body)
			require.NoError(t, r.Next(&f))
			require.Len(t, f.Payload, 100_000)
			require.ErrorIs(t, r.Next(&f), io.EOF)
		})
	}
}

// Invalid frames are rejected with the condition of the specification.
func TestInvalidFrames(t *testing.T) {
	list := func(code byte, body ...byte) []byte {
		return append([]byte{0, 0, 0, byte(8 + 3 + len(body)), 2, 0, 0, 0, 0, 0x53, code}, body...)
	}
	for _, c := range []struct {
		name      string
		frame     []byte
		condition wire.Symbol
	}{
		{"too short", []byte{0, 0, 0, 7, 2, 0, 0, 0}, wire.ConditionFraming},
		{"too long", []byte{0xff, 0, 0, 0, 2, 0, 0, 0}, wire.ConditionFraming},
		{"data offset within the header", []byte{0, 0, 0, 8, 1, 0, 0, 0}, wire.ConditionFraming},
		{"data offset behind the end", []byte{0, 0, 0, 8, 3, 0, 0, 0}, wire.ConditionFraming},
		{"unknown type", []byte{0, 0, 0, 8, 2, 9, 0, 0}, wire.ConditionFraming},
		{"unknown performative", list(0x19, 0x45), wire.ConditionDecode},
		{"a state as a performative", list(0x24, 0x45), wire.ConditionDecode},
		{"no list", list(0x14, 0x41), wire.ConditionDecode},
		{"open without container-id", list(0x10, 0x45), wire.ConditionInvalid},
		{"begin without windows", list(0x11, 0xc0, 3, 2, 0x40, 0x43), wire.ConditionInvalid},
		{"attach without name", list(0x12, 0x45), wire.ConditionInvalid},
		{"transfer without handle", list(0x14, 0x45), wire.ConditionInvalid},
		{"a string for a handle", list(0x14, 0xc0, 4, 1, 0xa1, 1, 'h'), wire.ConditionDecode},
		{"a field too many", list(0x18, 0xc0, 3, 2, 0x40, 0x40), wire.ConditionDecode},
		{"an invalid error", list(0x18, 0xc0, 5, 1, 0, 0x53, 0x24, 0x45), wire.ConditionDecode},
		{
			"a delivery tag of 33 bytes",
			list(0x14, append([]byte{0xc0, 38, 3, 0x43, 0x43, 0xa0, 33}, make([]byte, 33)...)...), wire.ConditionInvalid,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			var f wire.Frame
			err := wire.NewReader(bytes.NewReader(c.frame), 1<<20).Next(&f)
			var e *wire.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, c.condition, e.Condition, e.Description)
		})
	}
	for n := 1; n < 20; n++ {
		var f wire.Frame
		b := wire.AppendFrame(nil, 0, &wire.Transfer{Handle: 300, DeliveryTag: []byte("123456")}, nil)
		require.ErrorIs(t, wire.NewReader(bytes.NewReader(b[:n]), 1<<20).Next(&f), io.ErrUnexpectedEOF)
	}
	_, _, err := wire.NewReader(strings.NewReader("GET / HTTP/1.1"), 512).ProtocolHeader()
	require.Error(t, err)
	require.Contains(t, err.Error(), "protocol header")
}

// The sections of a message are decoded in order.
func TestSections(t *testing.T) {
	want := []wire.Described{
		{Descriptor: uint64(wire.SectionHeader), Value: wire.List{true, uint8(9), uint32(1000), true, uint32(3)}},
		{Descriptor: uint64(wire.SectionMessageAnnotations), Value: wire.Map{{wire.Symbol("x-opt-a"), int64(1)}}},
		{Descriptor: uint64(wire.SectionProperties), Value: wire.List{uint64(1), []byte("u"), "to"}},
		{Descriptor: uint64(wire.SectionApplicationProperties), Value: wire.Map{{"k", "v"}}},
		{Descriptor: uint64(wire.SectionData), Value: []byte("one")},
		{Descriptor: uint64(wire.SectionData), Value: []byte(long)},
	}
	var b []byte
	for _, s := range want {
		b = wire.AppendValue(b, s)
	}
	require.Equal(t, want, sections(t, b))
}

// Messages to a coordinator are decoded, and other messages are rejected.
func TestTransactions(t *testing.T) {
	got, err := wire.DecodeTransaction(wiretest.Declare())
	require.NoError(t, err)
	require.Equal(t, &wire.Declare{}, got)
	got, err = wire.DecodeTransaction(append(wiretest.AppendTo(nil, "q"), wiretest.Discharge([]byte("t"), true)...))
	require.NoError(t, err)
	require.Equal(t, &wire.Discharge{TxnID: []byte("t"), Fail: true}, got)
	_, err = wire.DecodeTransaction(wiretest.AppendData(nil, nil))
	require.Error(t, err)
	_, err = wire.DecodeTransaction(wiretest.AppendSection(nil, wire.SectionValue, "x"))
	require.Error(t, err)
}

// A peer may send symbolic descriptors.
func TestSymbolicDescriptors(t *testing.T) {
	b := []byte{0, 0xa3, 18}
	b = append(b, "amqp:disposition:l"...)
	_, _, err := wire.NextSection(b)
	require.Error(t, err)
	name := "amqp:header:list"
	b = append(append([]byte{0, 0xa3, byte(len(name))}, name...), 0x45)
	s, rest, err := wire.NextSection(b)
	require.NoError(t, err)
	require.Empty(t, rest)
	require.Equal(t, uint64(wire.SectionHeader), s.Code)
}

// Frames that occur for every message are encoded and decoded without allocations.
func TestNoAllocations(t *testing.T) {
	var stream []byte
	const rounds = 100
	transfer := &wire.Transfer{
		Handle: 1, DeliveryID: wire.Some(uint32(1 << 20)), DeliveryTag: []byte("12345678"),
		MessageFormat: wire.Some(uint32(0)), Settled: wire.Some(false),
	}
	disposition := &wire.Disposition{
		Role: wire.RoleReceiver, First: 1 << 20, Last: 1<<20 + 7, Settled: true, State: wire.Accepted{},
	}
	flow := &wire.Flow{
		NextIncomingID: wire.Some(uint32(1)), IncomingWindow: 2, Handle: wire.Some(uint32(0)),
		LinkCredit: wire.Some(uint32(7)),
	}
	payload := []byte(long)
	appended := func(b []byte) []byte {
		b = wire.AppendFrame(b, 1, transfer, payload)
		b = wire.AppendFrame(b, 1, disposition, nil)
		return wire.AppendFrame(b, 1, flow, nil)
	}
	out := make([]byte, 0, 4096)
	require.Zero(t, testing.AllocsPerRun(rounds, func() { out = appended(out[:0]) }))
	for range rounds + 2 {
		stream = appended(stream)
	}
	r := wire.NewReader(bytes.NewReader(stream), 1<<16)
	var f wire.Frame
	require.Zero(t, testing.AllocsPerRun(rounds, func() {
		for range 3 {
			if err := r.Next(&f); err != nil {
				panic(err)
			}
		}
	}))
}

// FuzzFrame checks that the Reader does not panic for any input, and that accepted frames are unchanged after
// re-encoding.
func FuzzFrame(f *testing.F) {
	for _, p := range performatives() {
		f.Add(wire.AppendFrame(nil, 1, p, []byte("payload")))
	}
	for _, p := range sasl() {
		f.Add(wire.AppendSASLFrame(nil, p))
	}
	eachFrame(f, protonSession(f), func(frame *wire.Frame) { f.Add(encode(frame)) })
	f.Fuzz(func(t *testing.T, b []byte) {
		var frame wire.Frame
		r := wire.NewReader(bytes.NewReader(b), 1<<16)
		if err := r.Next(&frame); err != nil {
			var e *wire.Error
			if !errors.As(err, &e) {
				require.True(t, errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF), "%v", err)
			}
			return
		}
		again := encode(&frame)
		var second wire.Frame
		require.NoError(t, wire.NewReader(bytes.NewReader(again), 1<<20).Next(&second))
		require.Equal(t, again, encode(&second))
	})
}

func encode(f *wire.Frame) []byte {
	if f.SASL {
		return wire.AppendSASLFrame(nil, f.Body)
	}
	return wire.AppendFrame(nil, f.Channel, f.Body, f.Payload)
}

// FuzzValue is like FuzzFrame, for values.
func FuzzValue(f *testing.F) {
	for _, v := range values() {
		f.Add(wire.AppendValue(nil, v))
	}
	for _, b := range protonVectors(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, rest, err := wire.DecodeValue(b)
		if err != nil {
			var e *wire.Error
			require.ErrorAs(t, err, &e)
			return
		}
		require.LessOrEqual(t, len(rest), len(b))
		again := wire.AppendValue(nil, v)
		w, rest, err := wire.DecodeValue(again)
		require.NoError(t, err)
		require.Empty(t, rest)
		require.Equal(t, again, wire.AppendValue(nil, w))
	})
}

// FuzzSections checks that the sections of a message comprise all of its bytes, and that no decoder panics.
func FuzzSections(f *testing.F) {
	f.Add(wiretest.AppendData(wiretest.AppendTo(nil, "q"), []byte("x")))
	f.Add(wiretest.Discharge([]byte("t"), false))
	for _, b := range protonVectors(f) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = wire.DecodeTransaction(b)
		var raw []byte
		for in := b; len(in) > 0; {
			s, rest, err := wire.NextSection(in)
			if err != nil {
				return
			}
			_, _, _ = wire.DecodeValue(s.Value)
			raw, in = append(raw, s.Raw...), rest
		}
		require.True(t, bytes.Equal(b, raw))
	})
}

func BenchmarkTransfer(b *testing.B) {
	one := wire.AppendFrame(nil, 1, &wire.Transfer{
		DeliveryID: wire.Some(uint32(1 << 20)), DeliveryTag: []byte("12345678"), MessageFormat: wire.Some(uint32(0)),
	}, make([]byte, 512))
	stream := bytes.Repeat(one, 100)
	in := bytes.NewReader(stream)
	r := wire.NewReader(in, 1<<16)
	var f wire.Frame
	b.ReportAllocs()
	b.SetBytes(int64(len(one)))
	for i := 0; b.Loop(); i++ {
		if i%100 == 0 {
			in.Reset(stream)
		}
		if err := r.Next(&f); err != nil {
			b.Fatal(err)
		}
	}
}
