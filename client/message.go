// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Message is what is published.
type Message struct {
	// Body is opaque to Lockstep. It must not be changed before the publish is answered.
	Body []byte
	// Properties of the application; keys of 1 to 255 bytes, 64 KiB for all of them together.
	Properties map[string]string
}

// Stored is a message as it is in a queue. Bodies of messages that came together lie in one piece of memory, which is
// kept as long as one of them is in use: an application that keeps a few messages for long had better copy them.
type Stored struct {
	Message
	// Sequence is the position in the queue; it starts at 1 and is never reused.
	Sequence uint64
	// PublishedAt is when the active accepted it, in milliseconds.
	PublishedAt time.Time
	// DeliveryCount is how often the subscription gave it to a consumer that did not acknowledge it.
	DeliveryCount uint32
}

// Receipt is the answer to a committed publish.
type Receipt struct {
	// Sequence of the message, or of the first one of a batch.
	Sequence uint64
	// LSN of the transaction in the store's log.
	LSN uint64
	// Duplicate is true when the first attempt had been committed and a repetition was answered from memory.
	Duplicate bool
	// Address of the node that acknowledged it.
	Address string
}

// Limits of the properties of one message.
const (
	maxKeyBytes        = 255
	maxPropertiesBytes = 64 << 10
)

// check refuses what no node would take, so that a wrong message does not spoil the batch it travels in.
func (m *Message) check(maxBody int) error {
	if len(m.Body) > maxBody {
		return fmt.Errorf("%w: the body has %d bytes, the limit is %d", ErrLimit, len(m.Body), maxBody)
	}
	total := 0
	for k, v := range m.Properties {
		if k == "" || len(k) > maxKeyBytes {
			return fmt.Errorf("%w: a property's key has %d bytes, 1 to %d are allowed", ErrInvalid, len(k), maxKeyBytes)
		}
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return fmt.Errorf("%w: property %q is not valid UTF-8; put binary data in the body", ErrInvalid, k)
		}
		total += len(k) + len(v)
	}
	if total > maxPropertiesBytes {
		return fmt.Errorf("%w: the properties have %d bytes, the limit is %d", ErrLimit, total, maxPropertiesBytes)
	}
	return nil
}

// checkName refuses what cannot be sent as a name; which names are allowed is the node's to say.
func checkName(what, name string) error {
	if name == "" || len(name) > maxKeyBytes || !utf8.ValidString(name) {
		return fmt.Errorf("%w: the name of a %s has 1 to %d characters of [A-Za-z0-9._/-], this is %q", ErrInvalid,
			what, maxKeyBytes, name)
	}
	return nil
}

// cost is what a message counts against the memory of a pipeline, in bytes.
func (m *Message) cost() int64 {
	n := int64(len(m.Body)) + 128
	for k, v := range m.Properties {
		n += int64(len(k) + len(v) + 32)
	}
	return n
}

func messagesToProto(ms []Message) []*pb.Message {
	slab, out := make([]pb.Message, len(ms)), make([]*pb.Message, len(ms)) // not one allocation for each
	for i := range ms {
		slab[i].Body, slab[i].Properties = ms[i].Body, ms[i].Properties
		out[i] = &slab[i]
	}
	return out
}

func storedFromProto(m *pb.StoredMessage) Stored {
	return Stored{
		Message:       Message{Body: m.GetMessage().GetBody(), Properties: m.GetMessage().GetProperties()},
		Sequence:      m.GetSequence(),
		PublishedAt:   timeFromProto(m.GetPublishedAt()),
		DeliveryCount: m.GetDeliveryCount(),
	}
}

func timeFromProto(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
