// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Message is a message to publish. MessageID, CorrelationID, ReplyTo, ContentType and Subject are standard fields,
// which filters can refer to. Each standard field and Group is limited to 1,024 bytes of UTF-8; all of them and
// Values together are limited to 64 KiB.
//
// Body, Properties and Values must not be modified before the publish has completed, nor after [ErrOutcomeUnknown]:
// the client may still be retrying the publish.
//
// All fields except Body and Properties are rejected with [ErrRefused] while one of the nodes runs release 0.1.0.
type Message struct {
	// Body is opaque to Lockstep. The client limits its size to [Options].MaxMessageBytes, and the nodes to
	// limits.message-bytes.
	Body []byte
	// Properties are string properties of the application. A key has 1 to 255 bytes. All encoded keys and values
	// together are limited to 64 KiB.
	Properties map[string]string

	// MessageID identifies the message. A queue with a DedupWindow discards a message if it has accepted the same
	// MessageID within this window.
	MessageID string
	// CorrelationID identifies a related message or operation, such as the request that a response belongs to.
	CorrelationID string
	// ReplyTo is the address for replies: by convention the name of a queue.
	ReplyTo string
	// ContentType is the media type of the body, such as "application/json".
	ContentType string
	// Subject is the subject or type of the message.
	Subject string

	// Group is the message group. Each subscription delivers the messages of a group in queue order, one at a time.
	Group string
	// Priority is 0 to 9; nil means 4. A queue with QueueConfig.Priorities delivers messages of a higher priority
	// first.
	Priority *uint8
	// ExpiresAt is the time when the message expires, by the clock of the active node, from 1970 to 9999, with millisecond
	// resolution. An expired message is not delivered. If both ExpiresAt and TTL are zero, only the queue's TTL applies.
	ExpiresAt time.Time
	// TTL is the time to live from acceptance by the active node: 1 ms to 100 years. TTL and ExpiresAt are mutually
	// exclusive. Consumers receive ExpiresAt.
	TTL time.Duration
	// DeliverAt is the earliest delivery time, by the clock of the active node, with millisecond resolution. It
	// overrides the queue's Delay, even if it is in the past. If both DeliverAt and Delay are zero, the queue's Delay
	// applies.
	DeliverAt time.Time
	// Delay is the delivery delay from acceptance by the active node, up to 100 years. Delay and DeliverAt are mutually
	// exclusive. Consumers receive DeliverAt.
	Delay time.Duration

	// Values are non-string properties of the application: bool, int64, float64 or []byte. An int is accepted and
	// delivered as int64. A key must not be in both Properties and Values.
	Values map[string]any
}

// Stored is a message in a queue. Bodies of messages that arrive together share one buffer, which stays allocated while
// one of them is referenced. Copy the body of a message that the application keeps for a long time.
type Stored struct {
	Message
	// Sequence is the position of the message in the queue. Sequences start at 1. They are not reused, unless messages
	// were lost, for example in a forced failover or in an unplanned promotion of another site.
	Sequence uint64
	// PublishedAt is the time when the active accepted the message, with millisecond resolution.
	PublishedAt time.Time
	// DeliveryCount is the number of earlier deliveries by the subscription, since its last Seek, that are known to have
	// ended without an acknowledgement. It can be too low: for example, a delivery in flight when the active fails is not
	// always counted, and a message that the application has not received is not counted.
	DeliveryCount uint32
	// DeadLetter describes the origin of a message that was moved to a dead-letter queue; nil for other messages.
	DeadLetter *DeadLetter
}

// Receipt is the result of a committed publish.
type Receipt struct {
	// Sequence is the sequence of the message, or of the first message of a batch.
	Sequence uint64
	// LSN is the LSN of the transaction, or, for a pair with sites, its logical number, which is equal at all sites.
	LSN uint64
	// Duplicate is true if a retry returned the result of an earlier attempt. It is also true if nothing was stored,
	// because the queue has accepted the MessageID of each message within its DedupWindow. Sequence is the sequence of
	// the accepted message, or of the first one of a batch.
	Duplicate bool
	// Discarded is the number of messages that were not stored, because the queue has accepted their MessageID within its
	// DedupWindow. The other messages of a batch have consecutive sequences, starting at Sequence.
	Discarded int
	// Address is the address of the node that acknowledged the publish.
	Address string
	// Partition is the name of the queue that contains the message, such as "orders#3/8", if the message was published to
	// a partitioned queue. Sequence belongs to this queue.
	Partition string
}

const (
	maxKeyBytes        = 255
	maxPropertiesBytes = 64 << 10
	maxFieldBytes      = 1024
)

// plain reports whether the message consists of a body only.
func (m *Message) plain() bool {
	return len(m.Properties)|len(m.Values)|len(m.MessageID)|len(m.CorrelationID)|len(m.ReplyTo)|len(m.ContentType)|
		len(m.Subject)|len(m.Group) == 0 && m.Priority == nil && m.TTL|m.Delay == 0 &&
		m.ExpiresAt.IsZero() && m.DeliverAt.IsZero()
}

// check returns an error for a message with a body above maxBody, or that no node accepts. Such a message would fail
// the whole request that contains it.
func (m *Message) check(maxBody int) error {
	if len(m.Body) > maxBody {
		return fmt.Errorf("%w: the body has %d bytes, the limit is %d", ErrLimit, len(m.Body), maxBody)
	}
	if m.plain() {
		return nil
	}
	total := 0 // as computed by a node: includes length prefixes and the number of properties
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
			return fmt.Errorf("%w: a key of Values must have 1 to %d bytes of UTF-8, not %.300q", ErrInvalid, maxKeyBytes, k)
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
			return fmt.Errorf("%w: the value of %q is a string: use Properties", ErrInvalid, k)
		default:
			return fmt.Errorf("%w: the value of %q has type %T; use bool, int64, float64 or []byte", ErrInvalid, k, v)
		}
	}
	if total > maxPropertiesBytes {
		return fmt.Errorf("%w: the standard fields and values have %d bytes, the limit is %d", ErrLimit, total,
			maxPropertiesBytes)
	}
	return nil
}

var fieldNames = [...]string{"MessageID", "CorrelationID", "ReplyTo", "ContentType", "Subject", "Group"}

func (m *Message) fields() [6]string {
	return [...]string{m.MessageID, m.CorrelationID, m.ReplyTo, m.ContentType, m.Subject, m.Group}
}

const (
	maxPriority = 9
	maxDuration = 100 * 365 * 24 * time.Hour
	minTTL      = time.Millisecond
	maxTimeMS   = 253_402_300_799_999
)

func (m *Message) checkDelivery() error {
	switch {
	case m.Priority != nil && *m.Priority > maxPriority:
		return fmt.Errorf("%w: Priority is %d, must be 0 to %d", ErrInvalid, *m.Priority, maxPriority)
	case m.TTL != 0 && (m.TTL < minTTL || m.TTL > maxDuration):
		return fmt.Errorf("%w: TTL is %s, must be 1ms to 100 years", ErrInvalid, m.TTL)
	case m.Delay < 0 || m.Delay > maxDuration:
		return fmt.Errorf("%w: Delay is %s, must be 0 to 100 years", ErrInvalid, m.Delay)
	case m.TTL != 0 && !m.ExpiresAt.IsZero():
		return fmt.Errorf("%w: a message has ExpiresAt or TTL, not both", ErrInvalid)
	case m.Delay != 0 && !m.DeliverAt.IsZero():
		return fmt.Errorf("%w: a message has DeliverAt or Delay, not both", ErrInvalid)
	}
	for _, at := range [...]time.Time{m.ExpiresAt, m.DeliverAt} {
		if ms := at.UnixMilli(); !at.IsZero() && (ms < 1 || ms > maxTimeMS) {
			return fmt.Errorf("%w: time %s is not in the years 1970 to 9999", ErrInvalid, at)
		}
	}
	return nil
}

// checkName checks the length and the encoding of a name. The node checks the characters.
func checkName(what, name string) error {
	if name == "" || len(name) > maxKeyBytes || !utf8.ValidString(name) {
		return fmt.Errorf("%w: the name of a %s must have 1 to %d characters of [A-Za-z0-9._/{}-], not %q", ErrInvalid,
			what, maxKeyBytes, name)
	}
	return nil
}

// cost returns the approximate memory of the message in bytes, which counts toward MaxPendingBytes.
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
	slab, out := make([]pb.Message, len(ms)), make([]*pb.Message, len(ms)) // avoids one allocation per message
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
	to.Ttl, to.Delay = link.DurationToProto(m.TTL), link.DurationToProto(m.Delay)
}

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

// valuesFromProto converts typed properties, and omits types that this client does not support.
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

func (s *Stored) fromProto(stored *pb.StoredMessage) {
	s.Sequence, s.DeliveryCount = stored.GetSequence(), stored.GetDeliveryCount()
	s.PublishedAt = link.TimeFromProto(stored.GetPublishedAt())
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
	s.ExpiresAt, s.DeliverAt = link.TimeFromProto(m.GetExpiresAt()), link.TimeFromProto(m.GetDeliverAt())
	s.Values = valuesFromProto(m.GetTypedProperties())
}
