// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// For any value of the property written by a gRPC client, an AMQP client receives a valid message.
func TestSectionsWrittenByGRPCClient(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(9, 10))}
	unchanged := 0
	for range 20_000 {
		received, _ := g.message()
		m, _, err := Decode(received)
		require.NoError(t, err)
		v := m.GetTypedProperties()[SectionsKey].GetKind().(*pb.PropertyValue_BytesValue)
		v.BytesValue = bytes.Clone(v.BytesValue)
		m.Body = bytes.Clone(m.GetBody())
		if g.IntN(4) == 0 && len(m.GetBody()) > 0 {
			m.Body[g.IntN(len(m.GetBody()))] = byte(g.IntN(256))
		} else {
			v.BytesValue[g.IntN(len(v.BytesValue))] = byte(g.IntN(256))
		}
		if _, ok := parsePreserved(v.BytesValue, m.GetBody()); ok {
			unchanged++
		}
		out := Append(nil, &pb.StoredMessage{Message: m}, published)
		_, _, err = Decode(out)
		var refusal *wire.Error
		if errors.As(err, &refusal) && refusal.Condition == wire.ConditionDecode {
			require.Contains(t, refusal.Description, "duplicate", "%x makes %x", v.BytesValue, out)
		}
	}
	require.Greater(t, unchanged, 5000)
}

// Each invalid value of the property is ignored, in a message that is valid without it.
func TestInvalidSectionsAreIgnored(t *testing.T) {
	data := slices.Clip(section(nil, wire.SectionData))
	behind := func(code byte, content ...byte) []byte { // a section, followed by data of one byte
		return append(append(append(section(nil, code), content...), data...), codeBinary8, 1)
	}
	for name, c := range map[string]struct {
		k    preserved
		body string
	}{
		"a string in place of data": {preserved{flags: bodyData, before: append(data, codeString8, 1)}, "x"},
		"text that is not UTF-8": {
			preserved{flags: bodyText, before: append(section(nil, wire.SectionValue), codeString8, 1)},
			"\xff",
		},
		"text as binary": {
			preserved{flags: bodyText, before: append(section(nil, wire.SectionValue), codeBinary8, 1)},
			"x",
		},
		"no body":         {preserved{flags: bodyData}, "x"},
		"an invalid body": {preserved{}, "x"},
		"a body of two section types": {
			preserved{}, string(append(append(data, codeBinary8, 0), append(section(nil, wire.SectionValue), codeNull)...)),
		},
		"a property of another type": {
			preserved{flags: bodyData, before: behind(wire.SectionProperties, codeList8, 3, 1, codeBool, 1)},
			"x",
		},
		"a key that is not a string": {
			preserved{flags: bodyData, before: behind(wire.SectionApplicationProperties, codeMap8, 3, 2, codeNull, codeNull)},
			"x",
		},
		"a map with an odd count": {
			preserved{flags: bodyData, before: behind(wire.SectionApplicationProperties, codeMap8, 2, 1, codeNull)},
			"x",
		},
		"a footer that is a list": {
			preserved{flags: bodyData, before: append(data, codeBinary8, 1), after: append(section(nil, wire.SectionFooter),
				codeList0)}, "x",
		},
	} {
		_, ok := parsePreserved(c.k.appendTo(nil), []byte(c.body))
		require.False(t, ok, name)
	}
	_, ok := parsePreserved((&preserved{flags: bodyData, before: append(data, codeBinary8, 1)}).appendTo(nil), []byte("x"))
	require.True(t, ok)
}
