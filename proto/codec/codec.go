// SPDX-License-Identifier: Apache-2.0

// Package codec is the gRPC codec of Lockstep's servers and clients. It speaks protobuf as others do, and
// decodes the messages that carry message bodies (publish requests, deliveries, log records, pages) with a few
// allocations each instead of several for each body: the bodies are slices of one buffer, and what surrounds them comes
// in slabs. What is sent is encoded into buffers that are used again, and may encode itself (Appender). What is large
// is not even copied, but sent from where it is, and log records are received where they stay (BulkDialOptions).
//
// What it does not expect (a field that it does not know, a field twice, a wire type that does not fit, text that is
// not UTF-8) it leaves to the protobuf library, so that the result, or the error, is the library's.
package codec

import (
	"bytes"
	"fmt"
	"sync"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// codec is the protobuf codec with a way of its own for some messages.
type codec struct {
	encoding.CodecV2
	buffers *buffers
	outputs *sync.Pool
	places  *places // where large messages were received; nil: anywhere
	marks   bool    // what cannot be decoded is marked, and is no error
}

// New returns the codec alone. Its name is that of protobuf.
func New() encoding.CodecV2 { return newCodec() }

func newCodec() codec {
	return codec{CodecV2: encoding.GetCodecV2(proto.Name), buffers: &buffers{}, outputs: &sync.Pool{}}
}

// Counted has a message decoded, and tells how long it was.
type Counted struct {
	// Message is decoded into.
	Message any
	// Bytes that it took, with gRPC's header of it.
	Bytes int
}

// prefixBytes is the length of gRPC's header of a message.
const prefixBytes = 5

// Unmarshal decodes data into v, or into what a *Counted is for. Bodies in v refer to memory of their own that is not
// used again, but for those in a ReceivedPublish.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if counted, ok := v.(*Counted); ok {
		counted.Bytes, v = prefixBytes+data.Len(), counted.Message
	}
	var decode func(b []byte) bool
	switch m := v.(type) {
	case *pb.PublishStreamRequest:
		decode = func(b []byte) bool { return publishStreamRequest(b, m, new(publishMemory)) }
	case *ReceivedPublish:
		m.memory = newPublishMemory()
		if publishStreamRequest(m.receive(data, c.buffers), &m.Request, m.memory) {
			return nil
		}
		return c.library(data, &m.Request) // it resets it first
	case *pb.PublishRequest:
		decode = func(b []byte) bool { return publishRequest(b, m, &pb.Producer{}, new(publishMemory)) }
	case *pb.ConsumeResponse:
		decode = func(b []byte) bool { return consumeResponse(b, m, new(Received).memory) }
	case *Received:
		v = &m.Response
		decode = func(b []byte) bool { return consumeResponse(b, &m.Response, m.memory) }
	case *pb.ReplicateResponse:
		if split(c.whole(data), replicateRecords, m, &m.Records) {
			return nil
		}
		return c.library(data, v)
	case *pb.FetchSnapshotResponse:
		if split(c.whole(data), snapshotData, m, &m.Data) {
			return nil
		}
		return c.library(data, v)
	default:
		return c.library(data, v)
	}
	if decode(join(data)) {
		return nil
	}
	return c.library(data, v) // it resets v first
}

var copied func(bytes int) //nolint:gochecknoglobals // for a test that counts

// CountCopies has fn called with how many bytes of messages that came in pieces are copied together. It is for a test,
// and must be called before anything is received.
func CountCopies(fn func(bytes int)) { copied = fn }

func tallyCopy(bytes int) {
	if copied != nil {
		copied(bytes)
	}
}

// whole returns all of data in one piece, which must not be changed and stays good: where it is, if it has a place.
func (c codec) whole(data mem.BufferSlice) []byte {
	if c.places != nil {
		return c.places.whole(data)
	}
	return join(data)
}

// join returns a copy of all of data in one piece.
func join(data mem.BufferSlice) []byte {
	b := fresh(data.Len())
	tallyCopy(len(b))
	data.CopyTo(b)
	return b
}

func (c codec) library(data mem.BufferSlice, v any) error {
	err := c.CodecV2.Unmarshal(data, v)
	if err == nil {
		return nil
	}
	if m, ok := v.(protobuf.Message); ok && c.marks {
		protobuf.Reset(m)
		m.ProtoReflect().SetUnknown(mark())
		return nil
	}
	return fmt.Errorf("protobuf: %w", err)
}

// mark is the only unknown field of a message that could not be decoded: the highest field that there can be, which no
// message uses.
func mark() protoreflect.RawFields {
	return protowire.AppendVarint(protowire.AppendTag(nil, protowire.MaxValidNumber, protowire.VarintType), 1)
}

// markBytes is the length of mark.
const markBytes = 6

// Undecodable tells whether a server with MarkingServerOptions could not decode a request, and what it should have
// been.
func Undecodable(v any) (name protoreflect.FullName, bad bool) {
	m, ok := v.(protobuf.Message)
	if !ok {
		return "", false
	}
	r := m.ProtoReflect()
	if u := r.GetUnknown(); len(u) != markBytes || !bytes.Equal(u, mark()) {
		return "", false
	}
	return r.Descriptor().FullName(), true
}
