// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Message is what is published.
type Message struct {
	// Body is opaque to Lockstep. It must not be changed before the publish is answered.
	Body []byte
	// Properties of the application that are texts; keys of 1 to 255 bytes, 64 KiB for all of them together.
	Properties map[string]string

	// The standard fields are stored and delivered, and Lockstep does nothing else with them. Each has at most 1,024
	// bytes of UTF-8; all of them and Values together at most 64 KiB. Empty ones take no space. ErrRefused while one of
	// the nodes is of release 0.1.0.

	// MessageID names the message, for the application.
	MessageID string
	// CorrelationID names what the message belongs to, such as the request that it answers.
	CorrelationID string
	// ReplyTo is where an answer is expected: the name of a queue, by convention.
	ReplyTo string
	// ContentType is what the body is, such as "application/json".
	ContentType string
	// Subject is what the message is about, or its type.
	Subject string

	// The next fields say how the message is delivered. ErrRefused while one of the nodes is of release 0.1.0.

	// Group names the messages that belong together, with at most 1,024 bytes of UTF-8: of one
	// group and subscription one message is with a consumer at a time, and the next one in the order of the queue goes
	// out when that is acknowledged, rejected or moved to the dead-letter queue.
	Group string
	// Priority is 0 to 9: a queue with QueueConfig.Priorities delivers a message of a higher one first. nil means 4.
	Priority *uint8
	// ExpiresAt is when the message expires, by the clock of the active node: from then on it is not delivered any more.
	// A resolution of a millisecond, from 1970 to 9999. Zero means never.
	ExpiresAt time.Time
	// TTL is the same as a duration from when the active accepts the message: at least a millisecond, at most 100 years;
	// 0 means that there is none. Not with ExpiresAt, which is what is delivered.
	TTL time.Duration
	// DeliverAt is the time before which the message is not delivered, by the clock of the active node, with the same
	// resolution. One that has passed has it delivered at once, whatever the queue's Delay is. Zero means none.
	DeliverAt time.Time
	// Delay is the same as a duration from when the active accepts the message, at most 100 years. Not with DeliverAt,
	// which is what is delivered. 0 means that there is none: then the queue's Delay counts.
	Delay time.Duration

	// Values are properties of the application that are not texts: bool, int64 (also int), float64 or []byte. What is
	// delivered is never an int. A key is in Properties or here, not in both.
	Values map[string]any
}

// Stored is a message as it is in a queue. Messages that came together lie in a few pieces of memory, their bodies in
// one, which are kept as long as one of them is in use: an application that keeps a few messages for long had better
// copy them.
type Stored struct {
	Message
	// Sequence is the position in the queue; it starts at 1 and is never reused.
	Sequence uint64
	// PublishedAt is when the active accepted it, in milliseconds.
	PublishedAt time.Time
	// DeliveryCount is how often the subscription gave it to a consumer that did not acknowledge it.
	DeliveryCount uint32
	// DeadLetter says where the message comes from, if it was moved here because a subscription could not deal with it;
	// nil for any other message.
	DeadLetter *DeadLetter
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
	maxFieldBytes      = 1024
)

// plain tells whether the message is a body and nothing else.
func (m *Message) plain() bool {
	return len(m.Properties)|len(m.Values)|len(m.MessageID)|len(m.CorrelationID)|len(m.ReplyTo)|len(m.ContentType)|
		len(m.Subject)|len(m.Group) == 0 && m.Priority == nil && m.TTL|m.Delay == 0 &&
		m.ExpiresAt.IsZero() && m.DeliverAt.IsZero()
}

// check refuses what no node would take, so that a wrong message does not spoil the batch it travels in.
func (m *Message) check(maxBody int) error {
	if len(m.Body) > maxBody {
		return fmt.Errorf("%w: the body has %d bytes, the limit is %d", ErrLimit, len(m.Body), maxBody)
	}
	if m.plain() {
		return nil
	}
	total := 0 // as a node counts it: with the lengths of keys and values, and their number
	if len(m.Properties) > 0 {
		total = protowire.SizeVarint(uint64(len(m.Properties)))
	}
	for k, v := range m.Properties {
		if k == "" || len(k) > maxKeyBytes {
			return fmt.Errorf("%w: a property's key has %d bytes, 1 to %d are allowed", ErrInvalid, len(k), maxKeyBytes)
		}
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return fmt.Errorf("%w: property %q is not valid UTF-8; put binary data in the body", ErrInvalid, k)
		}
		total += protowire.SizeBytes(len(k)) + protowire.SizeBytes(len(v))
	}
	if total > maxPropertiesBytes {
		return fmt.Errorf("%w: the properties have %d bytes, the limit is %d", ErrLimit, total, maxPropertiesBytes)
	}
	return m.checkFields()
}

// checkFields is check for the standard fields and Values.
func (m *Message) checkFields() error {
	if err := m.checkDelivery(); err != nil {
		return err
	}
	total := 0
	for i, field := range m.fields() {
		if len(field) > maxFieldBytes {
			return fmt.Errorf("%w: %s has %d bytes, the limit is %d", ErrLimit, fieldNames[i], len(field), maxFieldBytes)
		}
		if !utf8.ValidString(field) {
			return fmt.Errorf("%w: %s is not valid UTF-8", ErrInvalid, fieldNames[i])
		}
		total += len(field)
	}
	for k, v := range m.Values {
		if k == "" || len(k) > maxKeyBytes || !utf8.ValidString(k) {
			return fmt.Errorf("%w: a key of Values has 1 to %d bytes of UTF-8, this is %.300q", ErrInvalid, maxKeyBytes, k)
		}
		if _, there := m.Properties[k]; there {
			return fmt.Errorf("%w: %q is in Properties and in Values", ErrInvalid, k)
		}
		total += len(k) + 1
		switch v := v.(type) {
		case bool, int, int64, float64:
			total += 8
		case []byte:
			total += len(v)
		case string:
			return fmt.Errorf("%w: the value of %q is a text, which belongs into Properties", ErrInvalid, k)
		default:
			return fmt.Errorf("%w: the value of %q is a %T; bool, int64, float64 and []byte are possible", ErrInvalid, k, v)
		}
	}
	if total > maxPropertiesBytes {
		return fmt.Errorf("%w: the standard fields and values have %d bytes, the limit is %d", ErrLimit, total,
			maxPropertiesBytes)
	}
	return nil
}

// fieldNames are the names of fields, in their order.
var fieldNames = [...]string{"MessageID", "CorrelationID", "ReplyTo", "ContentType", "Subject", "Group"}

func (m *Message) fields() [6]string {
	return [...]string{m.MessageID, m.CorrelationID, m.ReplyTo, m.ContentType, m.Subject, m.Group}
}

// Bounds of what says how a message is delivered.
const (
	maxPriority = 9
	maxDuration = 100 * 365 * 24 * time.Hour
	minTTL      = time.Millisecond
	maxTimeMS   = 253_402_300_799_999
)

// checkDelivery is check for the fields that say how a message is delivered.
func (m *Message) checkDelivery() error {
	switch {
	case m.Priority != nil && *m.Priority > maxPriority:
		return fmt.Errorf("%w: Priority is %d, 0 to %d are possible", ErrInvalid, *m.Priority, maxPriority)
	case m.TTL != 0 && (m.TTL < minTTL || m.TTL > maxDuration):
		return fmt.Errorf("%w: TTL is %s, 1ms to 100 years are possible", ErrInvalid, m.TTL)
	case m.Delay < 0 || m.Delay > maxDuration:
		return fmt.Errorf("%w: Delay is %s, up to 100 years are possible", ErrInvalid, m.Delay)
	case m.TTL != 0 && !m.ExpiresAt.IsZero():
		return fmt.Errorf("%w: a message has ExpiresAt or TTL, not both", ErrInvalid)
	case m.Delay != 0 && !m.DeliverAt.IsZero():
		return fmt.Errorf("%w: a message has DeliverAt or Delay, not both", ErrInvalid)
	}
	for _, at := range [...]time.Time{m.ExpiresAt, m.DeliverAt} {
		if ms := at.UnixMilli(); !at.IsZero() && (ms < 1 || ms > maxTimeMS) {
			return fmt.Errorf("%w: the time %s; it must be after 1970 and before the year 10000", ErrInvalid, at)
		}
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
	if m.plain() {
		return n
	}
	for k, v := range m.Properties {
		n += int64(len(k) + len(v) + 32)
	}
	for _, field := range m.fields() {
		n += int64(len(field))
	}
	for k, v := range m.Values {
		b, _ := v.([]byte)
		n += int64(len(k) + len(b) + 64)
	}
	return n
}

func messagesToProto(ms []Message) []*pb.Message {
	slab, out := make([]pb.Message, len(ms)), make([]*pb.Message, len(ms)) // not one allocation for each
	for i := range ms {
		m, to := &ms[i], &slab[i]
		to.Body, to.Properties = m.Body, m.Properties
		to.MessageId, to.CorrelationId, to.ReplyTo, to.ContentType, to.Subject = m.MessageID, m.CorrelationID, m.ReplyTo,
			m.ContentType, m.Subject
		m.deliveryToProto(to)
		if len(m.Values) > 0 {
			to.TypedProperties = valuesToProto(m.Values)
		}
		out[i] = to
	}
	return out
}

// deliveryToProto converts the fields that say how a message is delivered, which most messages do not have.
func (m *Message) deliveryToProto(to *pb.Message) {
	to.Group = m.Group
	if m.Priority != nil {
		to.Priority = new(uint32(*m.Priority))
	}
	if !m.ExpiresAt.IsZero() {
		to.ExpiresAt = timestamppb.New(m.ExpiresAt)
	}
	if !m.DeliverAt.IsZero() {
		to.DeliverAt = timestamppb.New(m.DeliverAt)
	}
	to.Ttl, to.Delay = durationToProto(m.TTL), durationToProto(m.Delay)
}

// durationToProto converts a duration; 0 is not sent.
func durationToProto(d time.Duration) *durationpb.Duration {
	if d == 0 {
		return nil
	}
	return durationpb.New(d)
}

// valuesToProto converts values that checkFields has passed.
func valuesToProto(values map[string]any) map[string]*pb.PropertyValue {
	out := make(map[string]*pb.PropertyValue, len(values))
	for k, v := range values {
		switch v := v.(type) {
		case bool:
			out[k] = &pb.PropertyValue{Kind: &pb.PropertyValue_BoolValue{BoolValue: v}}
		case int:
			out[k] = &pb.PropertyValue{Kind: &pb.PropertyValue_IntValue{IntValue: int64(v)}}
		case int64:
			out[k] = &pb.PropertyValue{Kind: &pb.PropertyValue_IntValue{IntValue: v}}
		case float64:
			out[k] = &pb.PropertyValue{Kind: &pb.PropertyValue_DoubleValue{DoubleValue: v}}
		case []byte:
			out[k] = &pb.PropertyValue{Kind: &pb.PropertyValue_BytesValue{BytesValue: v}}
		}
	}
	return out
}

// valuesFromProto leaves out what this client does not know.
func valuesFromProto(values map[string]*pb.PropertyValue) map[string]any {
	if len(values) == 0 {
		return nil
	}
	out := make(map[string]any, len(values))
	for k, v := range values {
		switch kind := v.GetKind().(type) {
		case *pb.PropertyValue_BoolValue:
			out[k] = kind.BoolValue
		case *pb.PropertyValue_IntValue:
			out[k] = kind.IntValue
		case *pb.PropertyValue_DoubleValue:
			out[k] = kind.DoubleValue
		case *pb.PropertyValue_BytesValue:
			out[k] = kind.BytesValue
		}
	}
	return out
}

func storedFromProto(m *pb.StoredMessage) (s Stored) {
	s.fromProto(m)
	return s
}

// fromProto fills a zero Stored.
func (s *Stored) fromProto(stored *pb.StoredMessage) {
	s.Sequence, s.DeliveryCount = stored.GetSequence(), stored.GetDeliveryCount()
	s.PublishedAt = timeFromProto(stored.GetPublishedAt())
	s.DeadLetter = deadLetterFromProto(stored.GetDeadLetter())
	m := stored.GetMessage()
	if m == nil {
		return
	}
	s.Body, s.Properties = m.GetBody(), m.GetProperties()
	s.MessageID, s.CorrelationID, s.ReplyTo = m.GetMessageId(), m.GetCorrelationId(), m.GetReplyTo()
	s.ContentType, s.Subject, s.Group = m.GetContentType(), m.GetSubject(), m.GetGroup()
	if m.Priority != nil {
		s.Priority = new(uint8(m.GetPriority()))
	}
	s.ExpiresAt, s.DeliverAt = timeFromProto(m.GetExpiresAt()), timeFromProto(m.GetDeliverAt())
	s.Values = valuesFromProto(m.GetTypedProperties())
}

func timeFromProto(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}
