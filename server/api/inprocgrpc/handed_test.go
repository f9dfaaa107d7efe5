// SPDX-License-Identifier: Apache-2.0

package inprocgrpc

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// filled sets every field of a message. Nested messages are empty.
func filled[M proto.Message](m M) M {
	r := m.ProtoReflect()
	fields := r.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch {
		case f.IsList():
			r.Mutable(f).List().AppendMutable()
		case f.Message() != nil:
			r.Mutable(f)
		case f.Kind() == protoreflect.BoolKind:
			r.Set(f, protoreflect.ValueOfBool(true))
		case f.Kind() == protoreflect.Uint32Kind:
			r.Set(f, protoreflect.ValueOfUint32(7))
		case f.Kind() == protoreflect.Uint64Kind:
			r.Set(f, protoreflect.ValueOfUint64(7))
		}
	}
	return m
}

// A message that is passed by reference is copied with all of its fields.
func TestEveryFieldIsPassed(t *testing.T) {
	for _, c := range []struct{ from, to proto.Message }{
		{filled(&pb.ConsumeRequest{}), &pb.ConsumeRequest{}},
		{filled(&pb.ConsumeResponse{}), &pb.ConsumeResponse{}},
		{filled(&pb.PublishStreamRequest{}), &pb.PublishStreamRequest{}},
		{filled(&pb.PublishStreamResponse{}), &pb.PublishStreamResponse{}},
	} {
		i := item{passed: c.from}
		require.NoError(t, i.into(c.to, 1<<20))
		require.True(t, proto.Equal(c.from, c.to), "%v", c.to)
	}
}
