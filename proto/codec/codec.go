// SPDX-License-Identifier: Apache-2.0

// Package codec implements the gRPC codec of Lockstep's servers and clients, for standard protobuf. Messages that carry
// message bodies (publish requests, deliveries, log records, pages) are decoded with a few allocations each. The bodies
// are slices of one buffer, and the surrounding objects are allocated in slabs. Messages are encoded into pooled
// buffers, and may encode themselves (Appender). Log records, and large fields of an Appender, are sent without a copy.
// Log records are received directly into their final memory (BulkDialOptions).
//
// The codec passes unexpected input, such as unknown fields, mismatched wire types and invalid UTF-8, to the protobuf
// library and returns its result or error.
package codec

import (
	"bytes"
	"fmt"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

type codec struct {
	encoding.CodecV2
	buffers *buffers
	outputs *sync.Pool
	places  *places // memory of large messages; may be nil
	marks   bool    // mark malformed messages instead of returning an error
}

// New returns the codec without connection options. It has the name of the protobuf codec.
func New() encoding.CodecV2 { return newCodec() }

func newCodec() codec {
	return codec{CodecV2: encoding.GetCodecV2(proto.Name), buffers: &buffers{}, outputs: &sync.Pool{}}
}

// Counted is a target for decoding that also receives the length of the message.
type Counted struct {
	Message any
	// Bytes includes the gRPC header.
	Bytes int
}

const prefixBytes = 5

// Unmarshal decodes data into v, or into the message of a *Counted. The memory of bodies in v is not reused, except in
// a ReceivedPublish.
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
		return c.library(data, &m.Request) // resets it first
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
		if split(c.wholeOnce(data), snapshotData, m, &m.Data) {
			return nil
		}
		return c.library(data, v)
	default:
		return c.library(data, v)
	}
	if decode(join(data)) {
		return nil
	}
	return c.library(data, v) // resets v first
}

var copied func(bytes int) //nolint:gochecknoglobals // for a test that counts

// CountCopies sets a function that is called with the number of bytes copied to join the pieces of a message. It is for
// tests, and must be called before anything is received.
func CountCopies(fn func(bytes int)) { copied = fn }

func tallyCopy(bytes int) {
	if copied != nil {
		copied(bytes)
	}
}

// whole returns data in one piece, which must not be modified and stays valid.
func (c codec) whole(data mem.BufferSlice) []byte {
	if c.places != nil {
		return c.places.whole(data)
	}
	return join(data)
}

// wholeOnce is like whole, but the result may be valid only until the next call.
func (c codec) wholeOnce(data mem.BufferSlice) []byte {
	if c.places != nil {
		return c.places.wholeOnce(data)
	}
	return join(data)
}

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

// mark returns the unknown field that marks a malformed message. It has the highest possible field number, which no
// message uses.
func mark() protoreflect.RawFields {
	return protowire.AppendVarint(protowire.AppendTag(nil, protowire.MaxValidNumber, protowire.VarintType), 1)
}

const markBytes = 6

// Undecodable reports whether a server with MarkingServerOptions could not decode a request, and returns its expected
// type.
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

// DialOptions returns options for a connection that uses the codec for all calls. Data is received into the codec's
// buffers, because gRPC zeroes its own buffers before each use.
func DialOptions() []grpc.DialOption {
	c := newCodec()
	return []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.ForceCodecV2(c)), experimental.WithBufferPool(c.buffers)}
}

// BulkDialOptions is like DialOptions, but for a connection with one call at a time, which receives messages of up to
// the given size. Large messages are received directly into their final memory. The data of a FetchSnapshotResponse is
// valid only until the next message is received.
func BulkDialOptions(most int) []grpc.DialOption {
	c := newCodec()
	c.places = newPlaces(most)
	return []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.ForceCodecV2(c)), experimental.WithBufferPool(c.places)}
}

// MarkingServerOptions returns the options of a server that passes invalid requests to its handlers, which must call
// Undecodable for each request. With other options, gRPC ends such calls with INTERNAL before the handler runs.
func MarkingServerOptions() []grpc.ServerOption {
	c := newCodec()
	c.marks = true
	return []grpc.ServerOption{grpc.ForceServerCodecV2(c), experimental.BufferPool(c.buffers)}
}
