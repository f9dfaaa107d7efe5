// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"sync"
	"unicode/utf8"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// maxMessages is one more than the number of messages that the server accepts. The server can therefore reject a
// larger request without allocations for all of its messages.
const maxMessages = 10_001

// fields calls fn for each field. value is the content of a length-delimited field, and number the value of a varint.
// fields returns false if fn returns false, or if b is malformed. fn must return false for unexpected fields, because
// the library preserves unknown fields, but this code would drop them.
func fields(b []byte, fn func(field int32, typ protowire.Type, value []byte, number uint64) bool) bool {
	for len(b) > 0 {
		field, typ, n := protowire.ConsumeTag(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		var value []byte
		var number uint64
		switch typ {
		case protowire.BytesType:
			value, n = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			number, n = protowire.ConsumeVarint(b)
		default:
			n = protowire.ConsumeFieldValue(field, typ, b)
		}
		if n < 0 || !fn(int32(field), typ, value[:len(value):len(value)], number) {
			return false
		}
		b = b[n:]
	}
	return true
}

// occurrences counts the fields with the given number, up to a maximum. ok is false if b is malformed.
func occurrences(b []byte, wanted int32, most int) (count int, ok bool) {
	ok = fields(b, func(field int32, _ protowire.Type, _ []byte, _ uint64) bool {
		if field == wanted && count < most {
			count++
		}
		return true
	})
	return count, ok
}

type publishCall struct {
	request  pb.PublishStreamRequest
	publish  pb.PublishRequest
	producer *pb.Producer // outlives the bodies that the other parts refer to
}

// maxMoreRequests is one more than the number of nested requests that the server accepts.
const maxMoreRequests = 257

// ReceivedPublish is a reusable pb.PublishStreamRequest: its parts, except texts, properties and producers, are reused
// for the next request of any stream.
type ReceivedPublish struct {
	// Request is valid until Reset, including its messages and their bodies, which are in the received buffer; texts,
	// properties and producers stay valid.
	Request pb.PublishStreamRequest

	memory   *publishMemory
	received mem.Buffer // contains the bodies
}

// receive returns data in one piece, valid until Reset.
func (r *ReceivedPublish) receive(data mem.BufferSlice, pool mem.BufferPool) []byte {
	r.freeBuffers()
	if isCounted(data) {
		data[0].Ref()
		r.received = data[0]
		return r.received.ReadOnlyData()
	}
	if mem.IsBelowBufferPoolingThreshold(data.Len()) {
		return join(data) // the pool does not reuse small buffers
	}
	tallyCopy(data.Len())
	b := pool.Get(data.Len())
	data.CopyTo(*b)
	r.received = mem.NewBuffer(b, pool)
	return *b
}

// isCounted reports whether data is one reference-counted buffer. The memory of a mem.SliceBuffer may be valid only
// during decoding.
func isCounted(data mem.BufferSlice) bool {
	if len(data) != 1 {
		return false
	}
	_, lent := data[0].(mem.SliceBuffer)
	return !lent
}

func (r *ReceivedPublish) freeBuffers() {
	if r.received != nil {
		r.received.Free()
		r.received = nil
	}
}

// ProtoReflect returns the reflection of the request.
func (r *ReceivedPublish) ProtoReflect() protoreflect.Message { return r.Request.ProtoReflect() }

// Reset releases the request. It must be called before the next request is received.
func (r *ReceivedPublish) Reset() {
	r.Request.Reset()
	r.freeBuffers()
	if r.memory != nil {
		r.memory.release()
		r.memory = nil
	}
}

type publishMemory struct {
	calls    []publishCall
	messages []pb.Message
	list     []*pb.Message
	used     int // of messages and list
}

var publishMemories = sync.Pool{New: func() any { return new(publishMemory) }} //nolint:gochecknoglobals // a pool

func newPublishMemory() *publishMemory {
	p, _ := publishMemories.Get().(*publishMemory)
	return p
}

// release pools the memory for another request, unless it is large.
func (p *publishMemory) release() {
	if len(p.messages) > maxReused {
		return
	}
	clear(p.messages[:p.used])
	clear(p.calls)
	p.used = 0
	publishMemories.Put(p)
}

func (p *publishMemory) forCalls(count int) []publishCall {
	if cap(p.calls) < count {
		p.calls = make([]publishCall, count)
	}
	p.calls = p.calls[:count]
	return p.calls
}

func (p *publishMemory) forMessages(count int) ([]pb.Message, []*pb.Message) {
	if len(p.messages)-p.used < count {
		n := max(count, min(2*len(p.messages), maxReused)) // earlier messages keep their memory
		p.messages, p.list, p.used = make([]pb.Message, n), make([]*pb.Message, n), 0
	}
	from, to := p.used, p.used+count
	p.used = to
	return p.messages[from:to:to], p.list[from:from:to]
}

func publishStreamRequest(b []byte, m *pb.PublishStreamRequest, memory *publishMemory) bool {
	count, ok := occurrences(b, 3, maxMoreRequests)
	if !ok {
		return false
	}
	calls, producers := memory.forCalls(count+1), make([]pb.Producer, count+1)
	for i := range calls {
		calls[i].producer = &producers[i]
	}
	if count > 0 {
		m.More = make([]*pb.PublishStreamRequest, 0, count)
	}
	return publishStreamPart(b, m, memory, &calls[count], calls[:count])
}

// publishStreamPart decodes a request into call, and the nested requests into more.
func publishStreamPart(
	b []byte, m *pb.PublishStreamRequest, memory *publishMemory, call *publishCall, more []publishCall,
) bool {
	return fields(b, func(field int32, typ protowire.Type, value []byte, number uint64) bool {
		switch field {
		case 1:
			m.Correlation = number
			return typ == protowire.VarintType
		case 2:
			if typ != protowire.BytesType || m.Publish != nil {
				return false
			}
			m.Publish = &call.publish
			return publishRequest(value, m.Publish, call.producer, memory)
		case 3:
			if typ != protowire.BytesType || len(more) == 0 {
				return false // or a nested request has nested requests, which is left to the library
			}
			if len(m.More) == len(more) {
				return true
			}
			one := &more[len(m.More)]
			m.More = append(m.More, &one.request)
			return publishStreamPart(value, &one.request, memory, one, nil)
		case 4:
			m.AcceptsMore = number != 0
			return typ == protowire.VarintType
		case 5:
			m.Resumes = number != 0
			return typ == protowire.VarintType
		}
		return false
	})
}

func publishRequest(b []byte, m *pb.PublishRequest, p *pb.Producer, memory *publishMemory) bool {
	count, ok := occurrences(b, 2, maxMessages)
	if !ok {
		return false
	}
	messages, list := memory.forMessages(count)
	ok = fields(b, func(field int32, typ protowire.Type, value []byte, number uint64) bool {
		if field == 4 {
			m.Splits = number != 0
			return typ == protowire.VarintType
		}
		if field < 1 || field > 3 {
			return false
		}
		if typ != protowire.BytesType {
			return false
		}
		switch field {
		case 1:
			m.Queue = string(value)
			return utf8.Valid(value)
		case 2:
			if len(list) == count {
				return true
			}
			one := &messages[len(list)]
			list = append(list, one)
			return message(value, one)
		default:
			if m.Producer != nil {
				return false
			}
			m.Producer = p
			return producer(value, p)
		}
	})
	m.Messages = list
	return ok
}

func producer(b []byte, m *pb.Producer) bool {
	return fields(b, func(field int32, typ protowire.Type, value []byte, number uint64) bool {
		switch field {
		case 1:
			m.Id = string(value)
			return typ == protowire.BytesType && utf8.Valid(value)
		case 2:
			m.Epoch = uint32(number)
			return typ == protowire.VarintType
		case 3:
			m.Sequence = number
			return typ == protowire.VarintType
		case 4:
			m.Retry = number != 0
			return typ == protowire.VarintType
		}
		return false
	})
}

// message decodes a message; its body is a slice of b. It returns false if the library must decode the message, for
// example because it has times or typed properties.
func message(b []byte, m *pb.Message) bool {
	return fields(b, func(field int32, typ protowire.Type, value []byte, number uint64) bool {
		if field == 9 && typ == protowire.VarintType {
			m.Priority = new(uint32(number))
			return true
		}
		if typ != protowire.BytesType {
			return false
		}
		var text *string
		switch field {
		case 1:
			m.Body = value
			return true
		case 2:
			return property(value, m)
		case 3:
			text = &m.MessageId
		case 4:
			text = &m.CorrelationId
		case 5:
			text = &m.ReplyTo
		case 6:
			text = &m.ContentType
		case 7:
			text = &m.Subject
		case 8:
			text = &m.Group
		default:
			return false
		}
		*text = string(value)
		return utf8.Valid(value)
	})
}

func property(b []byte, m *pb.Message) bool {
	var key, value string
	ok := fields(b, func(field int32, typ protowire.Type, text []byte, _ uint64) bool {
		switch field {
		case 1:
			key = string(text)
		case 2:
			value = string(text)
		default:
			return false
		}
		return typ == protowire.BytesType && utf8.Valid(text)
	})
	if m.Properties == nil {
		m.Properties = make(map[string]string)
	}
	m.Properties[key] = value
	return ok
}
