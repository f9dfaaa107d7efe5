// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// allocated returns the number of bytes that a function allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// compound encodes a list, map or array with sizes of 4 bytes and the given count.
func compound(code byte, count uint32, content []byte) []byte {
	b := binary.BigEndian.AppendUint32([]byte{code}, uint32(len(content))+4)
	return append(binary.BigEndian.AppendUint32(b, count), content...)
}

// Decoding a value of 128 KiB allocates a small multiple of this size, regardless of the counts in the value.
func TestMemoryIsBoundedByReceivedBytes(t *testing.T) {
	const size = 128 << 10
	nested := func(code byte) []byte {
		b := make([]byte, size)
		for range 31 { // each claims as many elements as there are bytes
			b = compound(code, uint32(len(b))&^1, b)
		}
		return b
	}
	emptyValues := []byte{0xe0, 2, 255, 0x41} // 255 times true, in an array of 4 bytes
	for name, b := range map[string][]byte{
		"lists in lists":          nested(0xd0),
		"maps in maps":            nested(0xd1),
		"arrays without bytes":    compound(0xd0, size/4, bytes.Repeat(emptyValues, size/4)),
		"an array of such arrays": compound(0xf0, size/3, append([]byte{0xe0}, bytes.Repeat(emptyValues[1:], size/3)...)),
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			took := allocated(func() { _, _, err = wire.DecodeValue(b) })
			require.Error(t, err)
			require.Less(t, took, uint64(4<<20), "bytes")
		})
	}
	t.Run("as many elements as there are bytes", func(t *testing.T) {
		b := compound(0xd0, size, bytes.Repeat([]byte{0x45}, size))
		took := allocated(func() {
			_, _, err := wire.DecodeValue(b)
			require.NoError(t, err)
		})
		require.Less(t, took, uint64(16<<20), "bytes")
	})
}

// Values of any type may be nested up to 32 levels.
func TestNestingLimit(t *testing.T) {
	list := func(v any) any { return wire.List{v} }
	for name, wrap := range map[string]func(any) any{
		"lists":  list,
		"maps":   func(v any) any { return wire.Map{{Key: "k", Value: v}} },
		"arrays": func(v any) any { return wire.Array{wire.List{v}} },
		"values": func(v any) any { return wire.Described{Descriptor: "d", Value: v} },
		"names":  func(v any) any { return wire.Described{Descriptor: v, Value: "v"} },
	} {
		var v any = "inside"
		for depth := 1; depth <= 40; depth++ {
			v = wrap(v)
			levels := depth
			if name == "arrays" {
				levels = 2 * depth
			}
			got, _, err := wire.DecodeValue(wire.AppendValue(nil, v))
			if levels > 32 {
				var e *wire.Error
				require.ErrorAs(t, err, &e, "%s, %d deep", name, depth)
				require.Contains(t, e.Description, "32", "%s, %d deep", name, depth)
				continue
			}
			require.NoError(t, err, "%s, %d deep", name, depth)
			require.Equal(t, v, got)
		}
	}
}

// Memory for a large frame is allocated as its bytes arrive, not by its size field, and is released afterwards.
func TestLargeFramesAllocateIncrementally(t *testing.T) {
	const size = 64 << 20
	head := wire.AppendFrame(nil, 0, &wire.Transfer{}, nil)
	binary.BigEndian.PutUint32(head, size)
	var f wire.Frame
	r := wire.NewReader(bytes.NewReader(head), size)
	require.Less(t, allocated(func() { require.ErrorIs(t, r.Next(&f), io.ErrUnexpectedEOF) }), uint64(1<<20))

	payload := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	stream := wire.AppendFrame(nil, 0, &wire.Transfer{}, payload)
	for range 2000 {
		stream = wire.AppendFrame(stream, 0, nil, nil)
	}
	stream = wire.AppendFrame(stream, 0, &wire.Transfer{}, payload[:40_000])
	r = wire.NewReader(bytes.NewReader(stream), size)
	require.NoError(t, r.Next(&f))
	require.Equal(t, payload, f.Payload)
	for range 2000 {
		require.NoError(t, r.Next(&f))
	}
	require.NoError(t, r.Next(&f))
	require.Equal(t, payload[:40_000], f.Payload)
	require.ErrorIs(t, r.Next(&f), io.EOF)
}

// described encodes a composite value with these fields.
func described(code byte, fields ...any) []byte {
	return wire.AppendValue([]byte{0, 0x53, code}, wire.List(fields))
}

func frameOf(kind byte, body []byte) []byte {
	b := binary.BigEndian.AppendUint32(nil, uint32(8+len(body)))
	return append(append(b, 2, kind, 0, 0), body...)
}

func state(code uint64, fields ...any) wire.Described {
	return wire.Described{Descriptor: code, Value: append(wire.List{}, fields...)}
}

// A missing mandatory field is reported by name; optional fields may be null or missing.
func TestMandatoryFields(t *testing.T) {
	u, yes := uint32(1), true
	for _, c := range []struct {
		body  []byte
		field string // "": complete
	}{
		{described(0x10), "missing container-id in open"},
		{described(0x10, "c"), ""},
		{described(0x10, "c", nil, nil, nil, nil, nil, nil, nil, nil, nil), ""},
		{described(0x11, nil, nil, u, u), "missing next-outgoing-id in begin"},
		{described(0x11, nil, u, nil, u), "missing incoming-window in begin"},
		{described(0x11, nil, u, u), "missing outgoing-window in begin"},
		{described(0x11, nil, u, u, u), ""},
		{described(0x12, nil, u, yes), "missing name in attach"},
		{described(0x12, "l", nil, yes), "missing handle in attach"},
		{described(0x12, "l", u), "missing role in attach"},
		{described(0x12, "l", u, yes), ""},
		{described(0x12, "l", u, yes, uint8(3)), "attach has an unknown settle mode"},
		{described(0x12, "l", u, yes, nil, uint8(2)), "attach has an unknown settle mode"},
		{described(0x12, "l", u, yes, nil, nil, state(0x28, "q", uint32(3))), "source has an unknown durability"},
		{described(0x12, "l", u, yes, nil, nil, state(0x28), state(0x29)), ""},
		{described(0x12, "l", u, yes, nil, nil, state(0x28), state(0x30)), ""},
		{described(0x13, nil, nil, u, u), "missing incoming-window in flow"},
		{described(0x13, nil, u, nil, u), "missing next-outgoing-id in flow"},
		{described(0x13, nil, u, u), "missing outgoing-window in flow"},
		{described(0x13, nil, u, u, u), ""},
		{described(0x14), "missing handle in transfer"},
		{described(0x14, u), ""},
		{described(0x14, u, nil, nil, nil, nil, nil, uint8(2)), "transfer has an unknown settle mode"},
		{described(0x15, nil, u), "missing role in disposition"},
		{described(0x15, yes), "missing first in disposition"},
		{described(0x15, yes, u), ""},
		{described(0x15, yes, u, u, yes, state(0x23, u)), "missing section-offset in delivery state"},
		{described(0x15, yes, u, u, yes, state(0x23, u, uint64(1))), ""},
		{described(0x15, yes, u, u, yes, state(0x25, state(0x1d))), "missing condition in error"},
		{described(0x15, yes, u, u, yes, state(0x25, state(0x1d, wire.Symbol("c")))), ""},
		{described(0x15, yes, u, u, yes, state(0x33)), "missing txn-id in delivery state"},
		{described(0x15, yes, u, u, yes, state(0x34)), "missing txn-id in delivery state"},
		{described(0x15, yes, u, u, yes, state(0x34, []byte{1})), ""},
		{described(0x16), "missing handle in detach"},
		{described(0x16, u), ""},
		{described(0x17), ""},
		{described(0x18), ""},
	} {
		var f wire.Frame
		err := wire.NewReader(bytes.NewReader(frameOf(0, c.body)), 1<<20).Next(&f)
		if c.field == "" {
			require.NoError(t, err, "%x", c.body)
			continue
		}
		var e *wire.Error
		require.ErrorAs(t, err, &e, c.field)
		require.Equal(t, wire.Error{Condition: wire.ConditionInvalid, Description: c.field}, *e)
	}
	for code, field := range map[byte]string{
		0x41: "mechanism", 0x42: "challenge", 0x43: "response", 0x44: "code",
	} {
		err := wire.NewReader(bytes.NewReader(frameOf(1, described(code))), 1<<20).Next(new(wire.Frame))
		var e *wire.Error
		require.ErrorAs(t, err, &e, field)
		require.Contains(t, e.Description, "missing "+field)
	}
}

// A composite with an invalid field is rejected as a whole.
func TestInvalidFields(t *testing.T) {
	u, yes := uint32(1), true
	in := func(s wire.Described) []byte { return described(0x15, yes, u, u, yes, s) }
	for name, body := range map[string][]byte{
		"a transaction in a transaction": in(state(0x34, []byte{1}, state(0x34, []byte{1}))),
		"a declared in a transaction":    in(state(0x34, []byte{1}, state(0x33, []byte{1}))),
		"an accepted with a field":       in(state(0x24, yes)),
		"a state that is unknown":        in(state(0x2f)),
		"a state that is a symbol":       described(0x15, yes, u, u, yes, wire.Symbol("amqp:accepted:list")),
		"a state with an unknown name":   in(wire.Described{Descriptor: wire.Symbol("x:accepted:list"), Value: wire.List{}}),
		"a target that is a source":      described(0x12, "l", u, yes, nil, nil, state(0x28), state(0x28)),
		"capabilities as strings":        described(0x10, "c", nil, nil, nil, nil, nil, nil, wire.Array{"queue"}),
		"properties as a list":           described(0x10, "c", nil, nil, nil, nil, nil, nil, nil, nil, wire.List{"queue"}),
		"a boolean of 2":                 {0, 0x53, 0x15, 0xc0, 4, 2, 0x56, 2, 0x43},
		"bytes behind the fields":        {0, 0x53, 0x18, 0xc0, 3, 1, 0x40, 0x40},
		"an unsettled map of three": {
			0, 0x53, 0x12, 0xc0, 17, 8, 0xa1, 1, 'l', 0x43, 0x41, 0x40, 0x40, 0x40, 0x40, 0xc1, 5, 3, 0xa0, 0, 0x40, 0x40,
		},
	} {
		err := wire.NewReader(bytes.NewReader(frameOf(0, body)), 1<<20).Next(new(wire.Frame))
		var e *wire.Error
		require.ErrorAs(t, err, &e, name)
		require.Equal(t, wire.ConditionDecode, e.Condition, name)
	}
	sasl := append(described(0x44, uint8(0)), 0x40)
	err := wire.NewReader(bytes.NewReader(frameOf(1, sasl)), 1<<20).Next(new(wire.Frame))
	var trailing *wire.Error
	require.ErrorAs(t, err, &trailing)
	require.Equal(t, wire.ConditionDecode, trailing.Condition)
}

// Every type of the specification can be decoded with its symbolic descriptor.
func TestSymbolicDescriptorsOfAllTypes(t *testing.T) {
	byName := func(name string, fields ...any) wire.Described {
		return wire.Described{Descriptor: wire.Symbol(name), Value: append(wire.List{}, fields...)}
	}
	u, yes := uint32(1), true
	for _, v := range []wire.Described{
		byName("amqp:open:list", "c"), byName("amqp:begin:list", nil, u, u, u),
		byName("amqp:attach:list", "l", u, yes, nil, nil,
			byName("amqp:source:list"), byName("amqp:coordinator:list")),
		byName("amqp:attach:list", "l", u, yes, nil, nil, nil, byName("amqp:target:list")),
		byName("amqp:flow:list", nil, u, u, u), byName("amqp:transfer:list", u),
		byName("amqp:disposition:list", yes, u, u, yes, byName("amqp:accepted:list")),
		byName("amqp:disposition:list", yes, u, u, yes,
			byName("amqp:rejected:list", byName("amqp:error:list", wire.Symbol("c")))),
		byName("amqp:disposition:list", yes, u, u, yes, byName("amqp:received:list", u, uint64(1))),
		byName("amqp:disposition:list", yes, u, u, yes, byName("amqp:declared:list", []byte{1})),
		byName("amqp:disposition:list", yes, u, u, yes,
			byName("amqp:transactional-state:list", []byte{1}, byName("amqp:modified:list"))),
		byName("amqp:disposition:list", yes, u, u, yes,
			byName("amqp:transactional-state:list", []byte{1}, byName("amqp:released:list"))),
		byName("amqp:detach:list", u), byName("amqp:end:list"), byName("amqp:close:list"),
	} {
		b := frameOf(0, wire.AppendValue(nil, v))
		require.NoError(t, wire.NewReader(bytes.NewReader(b), 1<<20).Next(new(wire.Frame)), "%v", v)
	}
	for _, v := range []wire.Described{
		byName("amqp:sasl-mechanisms:list", wire.Symbol("PLAIN")), byName("amqp:sasl-init:list", wire.Symbol("PLAIN")),
		byName("amqp:sasl-challenge:list", []byte{}), byName("amqp:sasl-response:list", []byte{}),
		byName("amqp:sasl-outcome:list", uint8(0)),
	} {
		b := frameOf(1, wire.AppendValue(nil, v))
		require.NoError(t, wire.NewReader(bytes.NewReader(b), 1<<20).Next(new(wire.Frame)), "%v", v)
	}
}
