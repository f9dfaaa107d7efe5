// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// customDecoded lists the messages with custom decoders.
var customDecoded = []proto.Message{
	&pb.PublishStreamRequest{}, &pb.PublishRequest{}, &pb.ConsumeResponse{}, &pb.ReplicateResponse{},
	&pb.FetchSnapshotResponse{},
}

// filler sets fields to random values, based on the descriptors.
type filler struct {
	rng *rand.Rand
	// unknownAt is the index of the message that gets an unknown field; negative for none.
	unknownAt int
	filled    int // number of filled messages
}

// fill sets every field of m and its nested messages, down to a depth.
func (f *filler) fill(m protoreflect.Message, depth int) {
	if f.filled == f.unknownAt {
		m.SetUnknown(unknownField(f.rng, m.Descriptor()))
	}
	f.filled++
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if o := fd.ContainingOneof(); o != nil && m.WhichOneof(o) != nil {
			continue // set one field of a oneof
		}
		switch {
		case depth == 0 && fd.Message() != nil:
		case fd.IsMap():
			for range 2 {
				v := m.NewField(fd).Map().NewValue()
				if fd.MapValue().Message() == nil {
					v = f.scalar(fd.MapValue())
				}
				m.Mutable(fd).Map().Set(f.scalar(fd.MapKey()).MapKey(), v)
			}
		case fd.IsList():
			for range 2 {
				list := m.Mutable(fd).List()
				if fd.Message() == nil {
					list.Append(f.scalar(fd))
					continue
				}
				v := list.NewElement()
				f.fill(v.Message(), depth-1)
				list.Append(v)
			}
		case fd.Message() != nil:
			f.fill(m.Mutable(fd).Message(), depth-1)
		default:
			m.Set(fd, f.scalar(fd))
		}
	}
}

// scalar returns a random value other than the zero value.
func (f *filler) scalar(fd protoreflect.FieldDescriptor) protoreflect.Value {
	n := f.rng.Uint64()>>1 | 1
	switch fd.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		values := fd.Enum().Values()
		return protoreflect.ValueOfEnum(values.Get(values.Len() - 1).Number())
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprintf("text-%d", n))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(fmt.Appendf(nil, "bytes-%d", n))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(n)
	case protoreflect.Int64Kind, protoreflect.Sint64Kind, protoreflect.Sfixed64Kind:
		return protoreflect.ValueOfInt64(int64(n))
	case protoreflect.Uint32Kind, protoreflect.Fixed32Kind:
		return protoreflect.ValueOfUint32(uint32(n))
	case protoreflect.Int32Kind, protoreflect.Sint32Kind, protoreflect.Sfixed32Kind:
		return protoreflect.ValueOfInt32(int32(n))
	case protoreflect.FloatKind:
		return protoreflect.ValueOfFloat32(f.rng.Float32())
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(f.rng.Float64())
	default:
		panic(fmt.Sprintf("field of unsupported kind %v", fd.Kind()))
	}
}

// unknownField returns a field that a later release may add, of any wire type, with the next or a much higher number.
func unknownField(rng *rand.Rand, to protoreflect.MessageDescriptor) []byte {
	number := protowire.Number(999)
	if rng.IntN(2) == 0 {
		number = 1
		for i := range to.Fields().Len() {
			number = max(number, to.Fields().Get(i).Number()+1)
		}
	}
	switch rng.IntN(4) {
	case 0:
		return protowire.AppendVarint(protowire.AppendTag(nil, number, protowire.VarintType), rng.Uint64())
	case 1:
		return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), []byte("the remaining fields"))
	case 2:
		return protowire.AppendFixed32(protowire.AppendTag(nil, number, protowire.Fixed32Type), rng.Uint32())
	default:
		return protowire.AppendFixed64(protowire.AppendTag(nil, number, protowire.Fixed64Type), rng.Uint64())
	}
}

// requireRoundTrip verifies that the codec decodes the library's encoding of a message, and that the library
// decodes the codec's encoding.
func requireRoundTrip(t *testing.T, want proto.Message) {
	t.Helper()
	b, err := proto.Marshal(want)
	require.NoError(t, err)
	got := want.ProtoReflect().New().Interface()
	require.NoError(t, New().Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, got))
	require.True(t, proto.Equal(want, got), "decoded by the codec:\n%v\n%v", want, got)

	encoded, err := New().Marshal(want)
	require.NoError(t, err)
	defer encoded.Free()
	got = want.ProtoReflect().New().Interface()
	require.NoError(t, proto.Unmarshal(encoded.Materialize(), got))
	require.True(t, proto.Equal(want, got), "encoded by the codec:\n%v\n%v", want, got)
}

// Every field of the messages with custom decoders, at any depth, survives a round trip.
func TestEveryFieldRoundTrip(t *testing.T) {
	for _, m := range customDecoded {
		t.Run(string(m.ProtoReflect().Descriptor().Name()), func(t *testing.T) {
			for seed := range uint64(20) {
				f := &filler{rng: rand.New(rand.NewPCG(seed, 1)), unknownAt: -1}
				want := m.ProtoReflect().New()
				f.fill(want, 4)
				requireRoundTrip(t, want.Interface())
			}
		})
	}
}

// An unknown field of a later release in any of the nested messages survives a round trip.
func TestUnknownFieldRoundTrip(t *testing.T) {
	for _, m := range customDecoded {
		t.Run(string(m.ProtoReflect().Descriptor().Name()), func(t *testing.T) {
			for at := 0; ; at++ {
				f := &filler{rng: rand.New(rand.NewPCG(uint64(at), 2)), unknownAt: at}
				want := m.ProtoReflect().New()
				f.fill(want, 3)
				if f.filled <= at {
					return
				}
				requireRoundTrip(t, want.Interface())
			}
		})
	}
}
