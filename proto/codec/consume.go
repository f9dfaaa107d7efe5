// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// delivery is all that a delivered message consists of, but for its body.
type delivery struct {
	stored  pb.StoredMessage
	message pb.Message
	at      timestamppb.Timestamp
}

func consumeResponse(b []byte, m *pb.ConsumeResponse) bool {
	count, ok := occurrences(b, 1, math.MaxInt)
	if !ok {
		return false
	}
	slab := make([]delivery, count)
	if count > 0 {
		m.Messages = make([]*pb.StoredMessage, 0, count)
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
