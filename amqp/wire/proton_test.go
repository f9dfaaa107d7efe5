// SPDX-License-Identifier: Apache-2.0

package wire_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// protonVectors returns encodings of Qpid Proton, by name.
func protonVectors(tb testing.TB) map[string][]byte {
	tb.Helper()
	text, err := os.ReadFile("testdata/proton.txt")
	require.NoError(tb, err)
	vectors := map[string][]byte{}
	for line := range strings.Lines(string(text)) {
		if name, digits, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			vectors[name], err = hex.DecodeString(digits)
			require.NoError(tb, err, name)
		}
	}
	return vectors
}

// protonValues returns the values that protonVectors encodes, by name.
func protonValues() map[string]any {
	sevens := make(wire.List, 300)
	for i := range sevens {
		sevens[i] = uint8(7)
	}
	described := func(v any) wire.Described { return wire.Described{Descriptor: wire.Symbol("u"), Value: v} }
	return map[string]any{
		"null": nil, "true": true, "false": false, "ubyte": uint8(200), "ushort": uint16(60000), "uint 0": uint32(0),
		"uint 255": uint32(255), "uint max": uint32(math.MaxUint32), "ulong 0": uint64(0), "ulong 255": uint64(255),
		"ulong max": uint64(math.MaxUint64), "byte": int8(-100), "short": int16(-30000), "int -128": int32(-128),
		"int min": int32(math.MinInt32), "long 127": int64(127), "long min": int64(math.MinInt64), "float": float32(1.5),
		"double": -2.25, "char": wire.Char('é'), "timestamp": wire.Timestamp(1700000000000),
		"uuid": wire.UUID{
			0, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff,
		},
		"binary": []byte{0, 255}, "binary 300": []byte(strings.Repeat("b", 300)), "string": "héllo",
		"string 300": strings.Repeat("s", 300), "symbol": wire.Symbol("amqp:x"),
		"decimal32": wire.Decimal("\x22\x50\x00\x01"), "decimal64": wire.Decimal("\x22\x30\x00\x00\x00\x00\x00\x01"),
		"list": wire.List{int64(1), "two", nil, wire.List{true}}, "empty list": wire.List{},
		"map": wire.Map{{Key: wire.Symbol("k"), Value: "v"}}, "empty map": wire.Map{}, "list of 300": sevens,
		"described": wire.Described{Descriptor: uint64(0x24), Value: wire.List{}},
		"described by name": wire.Described{
			Descriptor: wire.Symbol("apache.org:selector-filter:string"), Value: "a = 1",
		},
		"array of ints": wire.Array{int32(1), int32(2), int32(-3)}, "array of booleans": wire.Array{true, false},
		"array of symbols":   wire.Array{wire.Symbol("a"), wire.Symbol("bb")},
		"array of strings":   wire.Array{"a", strings.Repeat("s", 300)},
		"array of described": wire.Array{described("a"), described("b")},
		"array of lists":     wire.Array{wire.List{true}, wire.List{}}, "empty array": wire.Array{},
	}
}

// Encodings of another codec are decoded to the original values. Values with only one encoding, and values for which
// Proton uses the shortest one, are encoded identically.
func TestValuesOfProton(t *testing.T) {
	vectors := protonVectors(t)
	same := 0
	for name, want := range protonValues() {
		require.Contains(t, vectors, name)
		got, rest, err := wire.DecodeValue(vectors[name])
		require.NoError(t, err, name)
		require.Empty(t, rest, name)
		require.Equal(t, want, got, name)
		again, _, err := wire.DecodeValue(wire.AppendValue(nil, got))
		require.NoError(t, err, name)
		require.Equal(t, want, again, name)
		switch got.(type) {
		case wire.Map, wire.Array, wire.List: // Proton writes four-byte lengths
		default:
			require.Equal(t, vectors[name], wire.AppendValue(nil, got), name)
			same++
		}
	}
	require.Greater(t, same, 25)
}

// sections decodes the sections of a message.
func sections(tb testing.TB, message []byte) (all []wire.Described) {
	tb.Helper()
	var raw []byte
	for b := message; len(b) > 0; {
		s, rest, err := wire.NextSection(b)
		require.NoError(tb, err)
		v, behind, err := wire.DecodeValue(s.Value)
		require.NoError(tb, err)
		require.Empty(tb, behind)
		all = append(all, wire.Described{Descriptor: s.Code, Value: v})
		raw, b = append(raw, s.Raw...), rest
	}
	require.Equal(tb, message, raw)
	return all
}

// The sections of messages that Proton encoded are decoded.
func TestMessagesOfProton(t *testing.T) {
	vectors := protonVectors(t)
	require.Equal(t, []wire.Described{
		{Descriptor: uint64(wire.SectionHeader), Value: wire.List{true, uint8(9), uint32(1500)}},
		{
			Descriptor: uint64(wire.SectionMessageAnnotations),
			Value:      wire.Map{{Key: wire.Symbol("x-opt-a"), Value: int64(1)}},
		},
		{Descriptor: uint64(wire.SectionProperties), Value: wire.List{
			"id-1", []byte("u"), "to", "s", "r", uint64(7), wire.Symbol("text/plain"), nil, nil,
			wire.Timestamp(1700000000000), "g", uint32(3),
		}},
		{Descriptor: uint64(wire.SectionApplicationProperties), Value: wire.Map{{Key: "k", Value: int64(1)}}},
		{Descriptor: uint64(wire.SectionValue), Value: "hello"},
	}, sections(t, vectors["message"]))
	data := sections(t, vectors["message of data"])
	require.Len(t, data, 3)
	require.Equal(t, []byte(strings.Repeat("x", 300)), data[2].Value)
}

// protonSession returns the data that a Proton client sent in a session with a node.
func protonSession(tb testing.TB) []byte {
	tb.Helper()
	text, err := os.ReadFile("testdata/proton-session.txt")
	require.NoError(tb, err)
	var digits strings.Builder
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			digits.WriteString(strings.TrimSpace(line))
		}
	}
	b, err := hex.DecodeString(digits.String())
	require.NoError(tb, err)
	return b
}

// eachFrame reads the frames of a session that begins with SASL.
func eachFrame(tb testing.TB, session []byte, do func(*wire.Frame)) {
	tb.Helper()
	r := wire.NewReader(bytes.NewReader(session), 1<<20)
	for _, want := range []byte{wire.ProtocolSASL, wire.ProtocolAMQP} {
		id, version, err := r.ProtocolHeader()
		require.NoError(tb, err)
		require.Equal(tb, want, id)
		require.Equal(tb, [3]byte{1, 0, 0}, version)
		for {
			var f wire.Frame
			err := r.Next(&f)
			if errors.Is(err, io.EOF) {
				return
			}
			require.NoError(tb, err)
			do(&f)
			if f.SASL { // the sasl-init, which is sufficient for ANONYMOUS
				break
			}
		}
	}
}

// All frames of a real client are decoded, and re-encoding preserves them.
func TestSessionOfProton(t *testing.T) {
	kinds := map[string]int{}
	eachFrame(t, protonSession(t), func(f *wire.Frame) {
		kinds[strings.TrimPrefix(fmt.Sprintf("%T", f.Body), "*wire.")]++
		if d, ok := f.Body.(*wire.Disposition); ok {
			kinds[fmt.Sprintf("%T", d.State)]++
		}
		var again wire.Frame
		require.NoError(t, wire.NewReader(bytes.NewReader(encode(f)), 1<<20).Next(&again))
		require.Equal(t, *f, again)
	})
	require.Equal(t, 4, kinds["Transfer"])
	require.Equal(t, 3, kinds["Attach"])
	for _, kind := range []string{
		"SASLInit", "Open", "Begin", "Flow", "Disposition", "Detach", "Close",
		"wire.Accepted", "*wire.Rejected", "*wire.Modified",
	} {
		require.NotZero(t, kinds[kind], "%s of %v", kind, kinds)
	}
}
