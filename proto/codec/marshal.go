package codec

import (
	"fmt"
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Appender is a message that encodes itself, as the protobuf library would encode the message that it stands for.
type Appender interface {
	// EncodedBytes is how many bytes AppendTo will append.
	EncodedBytes() int
	// AppendTo appends the encoded message.
	AppendTo(b []byte) []byte
}

// Marshal encodes v, a protobuf message or an Appender, into a buffer that is used again once gRPC has sent it.
//
// The codec that comes with gRPC does the same, but sets the whole of each buffer to zero before, and its buffers for messages of more
// than 32 KiB have 1 MiB: for a delivery of 128 small messages that was most of the work.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(Appender); ok {
		return c.encode(m.EncodedBytes(), func(b []byte) ([]byte, error) { return m.AppendTo(b), nil })
	}
	m, ok := v.(proto.Message)
	if !ok {
		data, err := c.CodecV2.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("protobuf: %w", err)
		}
		return data, nil
	}
	options := proto.MarshalOptions{UseCachedSize: true} // proto.Size, just before, keeps it
	return c.encode(proto.Size(m), func(b []byte) ([]byte, error) { return options.MarshalAppend(b, m) })
}

// encode has size bytes appended to an empty buffer.
func (c codec) encode(size int, appendTo func(b []byte) ([]byte, error)) (mem.BufferSlice, error) {
	if mem.IsBelowBufferPoolingThreshold(size) {
		b, err := appendTo(make([]byte, 0, size))
		if err != nil {
			return nil, fmt.Errorf("protobuf: %w", err)
		}
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	buf := c.buffers.Get(size)
	b, err := appendTo((*buf)[:0])
	if err != nil {
		c.buffers.Put(buf)
		return nil, fmt.Errorf("protobuf: %w", err)
	}
	if len(b) != size {
		return nil, fmt.Errorf("protobuf: a message of %d bytes was encoded in %d; it was changed meanwhile", size, len(b))
	}
	return mem.BufferSlice{mem.NewBuffer(buf, c.buffers)}, nil
}

// Buffers have powers of two, from 1 KiB to 4 MiB; larger ones are not kept.
const (
	leastExponent = 10
	mostExponent  = 22
)

// buffers is a mem.BufferPool for whoever overwrites all of a buffer: what was in it before may still be there.
type buffers struct {
	pools [mostExponent - leastExponent + 1]sync.Pool
}

// Get returns a buffer of the length, with any content.
func (p *buffers) Get(length int) *[]byte {
	i := max(bits.Len(uint(max(length, 1)-1)), leastExponent) - leastExponent //nolint:gosec // not negative
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

// Put takes a buffer back that Get returned.
func (p *buffers) Put(b *[]byte) {
	n := cap(*b)
	if i := bits.Len(uint(n)) - 1 - leastExponent; i >= 0 && i < len(p.pools) && n == 1<<(i+leastExponent) { //nolint:gosec // not negative
		p.pools[i].Put(b)
	}
}
