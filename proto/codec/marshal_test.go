package codec

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	protobuf "google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// TestMarshal: what is encoded is what the library encodes, also into a buffer that held something else before.
func TestMarshal(t *testing.T) {
	c := New()
	for _, size := range []int{0, 1, 900, 1 << 10, 3000, 1 << 16, 1<<16 + 1, 1 << 22, 5 << 20} {
		for _, fill := range []byte{1, 2} {
			t.Run(fmt.Sprint(size, " ", fill), func(t *testing.T) {
				body := make([]byte, size)
				for i := range body {
					body[i] = fill
				}
				m := &pb.PublishRequest{Queue: "q", Messages: []*pb.Message{{Body: body}}}
				data, err := c.Marshal(m)
				require.NoError(t, err)
				want, err := protobuf.Marshal(m)
				require.NoError(t, err)
				require.Equal(t, want, data.Materialize())
				data.Free()
			})
		}
	}
	_, err := c.Marshal("no message")
	require.Error(t, err)
	_, err = c.Marshal(&pb.PublishRequest{Queue: "\xff"})
	require.Error(t, err, "not UTF-8")
}

// own is an Appender.
type own struct{ text string }

func (o own) EncodedBytes() int        { return 2000 }
func (o own) AppendTo(b []byte) []byte { return append(b, o.text...) }

// TestAppender: who says that it has another size than it has is found out, instead of sending a part of a buffer.
func TestAppender(t *testing.T) {
	data, err := New().Marshal(own{string(make([]byte, 2000))})
	require.NoError(t, err)
	require.Len(t, data.Materialize(), 2000)
	_, err = New().Marshal(own{"short"})
	require.Error(t, err)
}

// TestBuffers: a buffer is as long as was asked for, and comes back for the same size.
func TestBuffers(t *testing.T) {
	var p buffers
	for _, n := range []int{0, 1, 1023, 1024, 1025, 1 << 20, 1<<22 - 1, 1 << 22, 1<<22 + 1} {
		for range 3 {
			b := p.Get(n)
			require.Len(t, *b, n)
			p.Put(b)
		}
	}
	foreign := make([]byte, 1500)
	p.Put(&foreign)
	require.Len(t, *p.Get(2048), 2048, "a buffer of another size is not kept")
}
