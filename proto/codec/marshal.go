// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"fmt"
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Appender is a message that encodes itself, identically to the protobuf library.
type Appender interface {
	// EncodedBytes returns the number of bytes that AppendTo appends, without data passed to Output.Refer.
	EncodedBytes() int
	AppendTo(o *Output)
}

// ReferBytes is the minimum size of data sent without a copy.
const ReferBytes = 4 << 10

// Output is the target of an Appender.
type Output struct {
	B    []byte
	refs []ref
}

type ref struct {
	at   int // offset in B
	data []byte
}

// Refer adds data of at least ReferBytes without a copy. The caller must not modify data afterwards.
func (o *Output) Refer(data []byte) { o.refs = append(o.refs, ref{len(o.B), data}) }

// pieces returns all data in order. whole contains the appended bytes, and is freed with the last piece.
func (o *Output) pieces(whole mem.Buffer) mem.BufferSlice {
	if len(o.refs) == 0 {
		return mem.BufferSlice{whole}
	}
	out := make(mem.BufferSlice, 0, 2*len(o.refs)+1)
	at := 0
	for _, r := range o.refs {
		if r.at > at {
			out, at = append(out, whole.Slice(at, r.at)), r.at
		}
		out = append(out, mem.SliceBuffer(r.data))
	}
	if at < len(o.B) {
		out = append(out, whole.Slice(at, len(o.B)))
	}
	whole.Free() // the pieces hold references
	return out
}

// Marshal encodes v, a protobuf message or an Appender, into a buffer that is reused after gRPC has sent it. Small
// buffers are not reused.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(Appender); ok {
		return c.encode(m.EncodedBytes(), func(o *Output) error {
			m.AppendTo(o)
			return nil
		})
	}
	m, ok := v.(proto.Message)
	if !ok {
		data, err := c.CodecV2.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("protobuf: %w", err)
		}
		return data, nil
	}
	if r, ok := v.(*pb.ReplicateResponse); ok && len(r.GetRecords()) >= ReferBytes {
		return c.records(r)
	}
	size := proto.Size(m)
	return c.encode(size, func(o *Output) error { return o.message(m) })
}

func (o *Output) message(m proto.Message) (err error) {
	o.B, err = proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(o.B, m)
	return err //nolint:wrapcheck // encode does
}

// records encodes a message with log records, which are sent without a copy.
func (c codec) records(m *pb.ReplicateResponse) (mem.BufferSlice, error) {
	records := m.Records
	m.Records = nil
	defer func() { m.Records = records }()
	size := proto.Size(m)
	head := protowire.SizeTag(replicateRecords) + protowire.SizeVarint(uint64(len(records)))
	return c.encode(size+head, func(o *Output) error {
		err := o.message(m)
		o.B = protowire.AppendVarint(protowire.AppendTag(o.B, replicateRecords, protowire.BytesType),
			uint64(len(records)))
		o.Refer(records)
		return err
	})
}

func (c codec) encode(size int, appendTo func(o *Output) error) (mem.BufferSlice, error) {
	var buf *[]byte
	o, ok := c.outputs.Get().(*Output)
	if !ok {
		o = &Output{}
	}
	defer func() {
		clear(o.refs)
		*o = Output{refs: o.refs[:0]}
		c.outputs.Put(o)
	}()
	if mem.IsBelowBufferPoolingThreshold(size) {
		o.B = make([]byte, 0, size)
	} else {
		buf = c.buffers.Get(size)
		o.B = (*buf)[:0]
	}
	err := appendTo(o)
	switch {
	case err != nil:
		err = fmt.Errorf("protobuf: %w", err)
	case len(o.B) != size:
		err = fmt.Errorf("protobuf: message changed during encoding: %d bytes instead of %d", len(o.B), size)
	case buf == nil:
		return o.pieces(mem.SliceBuffer(o.B)), nil
	default:
		return o.pieces(mem.NewBuffer(buf, c.buffers)), nil
	}
	if buf != nil {
		c.buffers.Put(buf)
	}
	return nil, err
}

// Buffer sizes are powers of two from 1 KiB to 4 MiB; larger buffers are not pooled.
const (
	leastExponent = 10
	mostExponent  = 22
)

// buffers is a mem.BufferPool for callers that overwrite the whole buffer: it may contain old data.
type buffers struct {
	pools [mostExponent - leastExponent + 1]sync.Pool
}

// Get returns a buffer of the given length with undefined content.
func (p *buffers) Get(length int) *[]byte {
	i := max(bits.Len(uint(max(length, 1)-1)), leastExponent) - leastExponent
	if i >= len(p.pools) {
		b := make([]byte, length)
		return &b
	}
	if b, ok := p.pools[i].Get().(*[]byte); ok {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length, 1<<(i+leastExponent))
	return &b
}

// poisoned enables overwriting of freed buffers, so that tests detect a use after free.
var poisoned bool //nolint:gochecknoglobals // for a test

// Poison enables overwriting of freed buffers. It is for tests, and must be called before any connection is made.
func Poison() { poisoned = true }

// Put frees a buffer returned by Get.
func (p *buffers) Put(b *[]byte) {
	if poisoned {
		for i := range *b {
			(*b)[i] = 0xdb
		}
	}
	n := cap(*b)
	if i := bits.Len(uint(n)) - 1 - leastExponent; i >= 0 && i < len(p.pools) && n == 1<<(i+leastExponent) {
		p.pools[i].Put(b)
	}
}
