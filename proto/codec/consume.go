// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// delivery contains all parts of a delivered message except its body.
type delivery struct {
	stored  pb.StoredMessage
	message pb.Message
	at      timestamppb.Timestamp
}

// maxReused is the maximum number of messages for which a Received retains memory, about 400 bytes per message.
const maxReused = 1024

// Received is a reusable pb.ConsumeResponse: the parts of its messages, except bodies and properties, are reused for
// the next response.
type Received struct {
	// Response is valid until Reset; the bodies and properties of its messages stay valid.
	Response pb.ConsumeResponse

	slab []delivery
	list []*pb.StoredMessage
}

// ProtoReflect returns the reflection of the response.
func (r *Received) ProtoReflect() protoreflect.Message { return r.Response.ProtoReflect() }

// Reset releases the response. It must be called before the next response is received.
func (r *Received) Reset() {
	if len(r.slab) > maxReused {
		r.slab, r.list = nil, nil
	}
	clear(r.slab)
	r.Response.Reset()
}

func (r *Received) memory(count int) ([]delivery, []*pb.StoredMessage) {
	if cap(r.slab) < count {
		r.slab, r.list = make([]delivery, count), make([]*pb.StoredMessage, 0, count)
	}
	r.slab = r.slab[:count]
	return r.slab, r.list
}

func consumeResponse(b []byte, m *pb.ConsumeResponse, memory func(int) ([]delivery, []*pb.StoredMessage)) bool {
	count, ok := occurrences(b, 1, math.MaxInt)
	if !ok {
		return false
	}
	var slab []delivery
	if count > 0 {
		slab, m.Messages = memory(count)
	}
	return fields(b, func(field int32, typ protowire.Type, value []byte, number uint64) bool {
		switch field {
		case 1:
			if typ != protowire.BytesType {
				return false
			}
			d := &slab[len(m.Messages)]
			m.Messages = append(m.Messages, &d.stored)
			return storedMessage(value, d)
		case 2:
			m.Confirmed = number
			return typ == protowire.VarintType
		case 3:
			m.Attached = number != 0
			return typ == protowire.VarintType
		}
		return false
	})
}

func storedMessage(b []byte, d *delivery) bool {
	m := &d.stored
	return fields(b, func(field int32, typ protowire.Type, value []byte, number uint64) bool {
		switch field {
		case 1:
			m.Sequence = number
			return typ == protowire.VarintType
		case 2:
			if typ != protowire.BytesType || m.PublishedAt != nil {
				return false
			}
			m.PublishedAt = &d.at
			return timestamp(value, m.PublishedAt)
		case 3:
			m.DeliveryCount = uint32(number)
			return typ == protowire.VarintType
		case 4:
			if typ != protowire.BytesType || m.Message != nil {
				return false
			}
			m.Message = &d.message
			return message(value, m.Message)
		}
		return false
	})
}

func timestamp(b []byte, m *timestamppb.Timestamp) bool {
	return fields(b, func(field int32, typ protowire.Type, _ []byte, number uint64) bool {
		switch field {
		case 1:
			m.Seconds = int64(number)
			return typ == protowire.VarintType
		case 2:
			m.Nanos = int32(number)
			return typ == protowire.VarintType
		}
		return false
	})
}
