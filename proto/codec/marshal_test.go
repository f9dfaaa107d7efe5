// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	protobuf "google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// The encoding equals that of the protobuf library, also in a reused buffer.
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
	_, err := c.Marshal("not a message")
	require.Error(t, err)
	_, err = c.Marshal(&pb.PublishRequest{Queue: "\xff"})
	require.Error(t, err, "not UTF-8")
}

// text is an Appender with a fixed size of 2000.
type text struct{ s string }

func (x text) EncodedBytes() int    { return 2000 }
func (x text) AppendTo(out *Output) { out.B = append(out.B, x.s...) }

// mixed is an Appender that refers to its large parts.
type mixed struct{ parts [][]byte }

func (m mixed) EncodedBytes() (n int) {
	for _, p := range m.parts {
		if len(p) < ReferBytes {
			n += len(p)
		}
	}
	return n
}

func (m mixed) AppendTo(o *Output) {
	for _, p := range m.parts {
		if len(p) < ReferBytes {
			o.B = append(o.B, p...)
		} else {
			o.Refer(p)
		}
	}
}

// Large data is not copied, and is in the correct order between copied data.
func TestLargeDataIsNotCopied(t *testing.T) {
	c := New()
	large, small := bytes.Repeat([]byte("L"), 2*ReferBytes), bytes.Repeat([]byte("s"), 900)
	for i, parts := range [][][]byte{
		{},
		{small},
		{small, small},
		{large},
		{large, large},
		{small, large},
		{large, small},
		{small, large, small},
		{small, small, large, large, small, large, small},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			for range 3 { // buffers are reused
				data, err := c.Marshal(mixed{parts})
				require.NoError(t, err)
				require.Equal(t, string(bytes.Join(parts, nil)), string(data.Materialize()))
				for _, piece := range data {
					if b := piece.ReadOnlyData(); len(b) == len(large) {
						require.Same(t, &large[0], &b[0])
					}
				}
				data.Free()
			}
		})
	}
}

// Large log records are not copied, and the library can decode the message.
func TestLogRecordsAreNotCopied(t *testing.T) {
	for _, size := range []int{0, 1, ReferBytes - 1, ReferBytes, 1 << 20} {
		m := &pb.ReplicateResponse{
			Config: 1, Term: 2, Previous: &pb.Position{Term: 2, Lsn: 7, Chain: 9},
			Records: bytes.Repeat([]byte("r"), size), Last: &pb.Position{Lsn: 8},
		}
		data, err := New().Marshal(m)
		require.NoError(t, err)
		require.Len(t, m.GetRecords(), size)
		var got pb.ReplicateResponse
		require.NoError(t, protobuf.Unmarshal(data.Materialize(), &got))
		require.True(t, protobuf.Equal(m, &got))
		require.Equal(t, size >= ReferBytes, len(data) > 1)
		data.Free()
	}
}

// Marshal fails for an Appender that appends less than it has announced.
func TestAppenderOfWrongSize(t *testing.T) {
	data, err := New().Marshal(text{string(make([]byte, 2000))})
	require.NoError(t, err)
	require.Len(t, data.Materialize(), 2000)
	_, err = New().Marshal(text{"short"})
	require.Error(t, err)
}

// Get returns a buffer of the requested length. Put drops buffers of other sizes.
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
	require.Len(t, *p.Get(2048), 2048, "buffer of another size")
}
