// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Append appends the AMQP encoding of a stored message; now determines the remaining time to live. A message received
// over AMQP is unchanged, except for the header and the annotations of a dead letter. If the sections in SectionsKey do
// not match the body, the converted fields are encoded. Append does not retain s.
func Append(b []byte, s *pb.StoredMessage, now time.Time) []byte {
	m := s.GetMessage()
	if v, ok := m.GetTypedProperties()[SectionsKey].GetKind().(*pb.PropertyValue_BytesValue); ok {
		if k, ok := parsePreserved(v.BytesValue, m.GetBody()); ok {
			return appendUnchanged(b, s, &k, now)
		}
	}
	return appendTranslated(b, s, now)
}

// appendUnchanged appends a message received over AMQP: the sections in k, with the current body.
func appendUnchanged(b []byte, s *pb.StoredMessage, k *preserved, now time.Time) []byte {
	h := header{durable: k.flags&isDurable != 0, deliveryCount: s.GetDeliveryCount()}
	if k.flags&hasPriority != 0 {
		h.priority = int(k.priority)
	} else {
		h.priority = -1
	}
	if k.flags&hasTTL != 0 {
		h.ttl = remaining(s.GetMessage(), now)
	}
	b = h.append(b)
	before := k.before
	if a := (annotations{origin: s.GetDeadLetter()}); a.any() {
		b, before = a.append(b, before)
	}
	b = append(b, before...)
	b = append(b, s.GetMessage().GetBody()...)
	return append(b, k.after...)
}

type header struct {
	durable       bool
	priority      int    // -1 if absent
	ttl           uint32 // milliseconds; 0: none
	deliveryCount uint32
}

// append appends the encoded header to b. If all fields have default values, it appends nothing.
func (h *header) append(b []byte) []byte {
	if !h.durable && h.priority < 0 && h.ttl == 0 && h.deliveryCount == 0 {
		return b
	}
	// At most 2 + 2 + 5 + 1 + 5 bytes: its length fits in one byte.
	b = append(section(b, wire.SectionHeader), codeList8, 0, 0)
	at, count := len(b), byte(1)
	b = wire.AppendBool(b, h.durable)
	if h.priority >= 0 || h.ttl > 0 || h.deliveryCount > 0 {
		count = 2
		if h.priority >= 0 {
			b = append(b, codeUbyte, byte(h.priority))
		} else {
			b = append(b, codeNull)
		}
	}
	if h.ttl > 0 || h.deliveryCount > 0 {
		count = 3
		if h.ttl > 0 {
			b = wire.AppendUint(b, h.ttl)
		} else {
			b = append(b, codeNull)
		}
	}
	if h.deliveryCount > 0 {
		count = 5
		b = wire.AppendUint(append(b, codeNull), h.deliveryCount)
	}
	b[at-2], b[at-1] = byte(len(b)-at+1), count
	return b
}

// remaining returns the remaining time to live in milliseconds, at least 1. It returns 0 if the message does not
// expire, or if the time exceeds the range of the header.
func remaining(m *pb.Message, now time.Time) uint32 {
	if m.GetExpiresAt() == nil {
		return 0
	}
	ms := m.GetExpiresAt().AsTime().Sub(now).Milliseconds()
	if ms > math.MaxUint32 {
		return 0
	}
	return uint32(max(ms, 1))
}

// appendTranslated appends the converted fields of a message.
func appendTranslated(b []byte, s *pb.StoredMessage, now time.Time) []byte {
	m := s.GetMessage()
	h := header{durable: true, priority: -1, ttl: remaining(m, now), deliveryCount: s.GetDeliveryCount()}
	if m.GetPriority() > 0 || m != nil && m.Priority != nil {
		h.priority = int(m.GetPriority())
	}
	b = h.append(b)
	a := annotations{origin: s.GetDeadLetter(), replyQueue: m.GetReplyTo() != ""}
	if m.GetDeliverAt() != nil {
		a.deliverAt = m.GetDeliverAt().AsTime().UnixMilli()
	}
	if a.any() {
		b, _ = a.append(b, nil)
	}
	b = appendProperties(b, s)
	b = appendApplicationProperties(b, m)
	return wire.AppendBinary(section(b, wire.SectionData), m.GetBody())
}

func appendProperties(b []byte, s *pb.StoredMessage) []byte {
	m := s.GetMessage()
	start := len(b)
	b = section(b, wire.SectionProperties)
	b, f := beginFields(b)
	text := func(position int, s string) {
		if s != "" {
			b = wire.AppendString(f.set(b, position), s)
		}
	}
	if m.GetMessageId() != "" {
		b = appendID(f.set(b, fieldMessageID), m.GetMessageId())
	}
	if user := m.GetProperties()[keyUserID]; user != "" {
		b = wire.AppendBinary(f.set(b, fieldUserID), user)
	}
	text(fieldSubject, m.GetSubject())
	text(fieldReplyTo, m.GetReplyTo())
	if m.GetCorrelationId() != "" {
		b = appendID(f.set(b, fieldCorrelationID), m.GetCorrelationId())
	}
	if isASCII(m.GetContentType()) {
		b = wire.AppendSymbol(f.set(b, fieldContentType), wire.Symbol(m.GetContentType()))
	}
	if t := m.GetExpiresAt(); t != nil {
		b = appendTimestamp(f.set(b, fieldAbsoluteExpiryTime), t.AsTime().UnixMilli())
	}
	if t := s.GetPublishedAt(); t != nil {
		b = appendTimestamp(f.set(b, fieldCreationTime), t.AsTime().UnixMilli())
	}
	text(fieldGroupID, m.GetGroup())
	if n, ok := groupSequence(m); ok {
		b = wire.AppendUint(f.set(b, fieldGroupSequence), n)
	}
	if f.count == 0 {
		return b[:start]
	}
	return f.end(b)
}

// isASCII reports whether s is a valid, non-empty symbol.
func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return s != ""
}

// groupSequence returns the group sequence property if it is in range.
func groupSequence(m *pb.Message) (uint32, bool) {
	v, ok := m.GetTypedProperties()[keyGroupSequence].GetKind().(*pb.PropertyValue_IntValue)
	if !ok || v.IntValue < 0 || v.IntValue > math.MaxUint32 {
		return 0, false
	}
	return uint32(v.IntValue), true
}

func appendApplicationProperties(b []byte, m *pb.Message) []byte {
	texts, typed := m.GetProperties(), m.GetTypedProperties()
	if len(texts)+len(typed) == 0 {
		return b
	}
	keys := make([]string, 0, len(texts)+len(typed))
	for key, text := range texts {
		if key != ContainerKey && (key != keyUserID || text == "") {
			keys = append(keys, key)
		}
	}
	_, hasSequence := groupSequence(m)
	for key := range typed {
		if key != SectionsKey && (key != keyGroupSequence || !hasSequence) {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return b
	}
	slices.SortFunc(keys, cmp.Compare[string])
	b, c := begin(section(b, wire.SectionApplicationProperties), codeMap)
	for _, key := range keys {
		b = wire.AppendString(b, key)
		c.count += 2
		if v, ok := typed[key]; ok {
			b = appendTyped(b, v)
		} else {
			b = wire.AppendString(b, texts[key])
		}
	}
	return c.end(b)
}

func appendTyped(b []byte, v *pb.PropertyValue) []byte {
	switch v := v.GetKind().(type) {
	case *pb.PropertyValue_BoolValue:
		return wire.AppendBool(b, v.BoolValue)
	case *pb.PropertyValue_IntValue:
		return appendLong(b, v.IntValue)
	case *pb.PropertyValue_DoubleValue:
		return appendDouble(b, v.DoubleValue)
	case *pb.PropertyValue_BytesValue:
		return wire.AppendBinary(b, v.BytesValue)
	}
	return append(b, codeNull)
}

type annotations struct {
	origin     *pb.DeadLetter
	deliverAt  int64 // milliseconds since 1970; 0: none
	replyQueue bool  // mark the reply address as a queue
}

func (a *annotations) any() bool { return a.origin != nil || a.deliverAt != 0 || a.replyQueue }

// Annotations of a dead letter. The first two are compatible with Artemis.
const (
	annotationOriginAddress      = "x-opt-ORIG-ADDRESS"
	annotationOriginQueue        = "x-opt-ORIG-QUEUE"
	annotationOriginSubscription = "x-opt-dead-letter-subscription"
	annotationOriginSequence     = "x-opt-dead-letter-sequence" // ulong
	annotationOriginReason       = "x-opt-dead-letter-reason"
	annotationOriginDeliveries   = "x-opt-dead-letter-deliveries" // uint
	annotationOriginTime         = "x-opt-dead-letter-time"       // timestamp
)

// reasonNames are the values of annotationOriginReason.
var reasonNames = map[pb.DeadLetterReason]string{
	pb.DeadLetterReason_DEAD_LETTER_REASON_MAX_DELIVERIES: "max-deliveries",
	pb.DeadLetterReason_DEAD_LETTER_REASON_REJECTED:       "rejected",
	pb.DeadLetterReason_DEAD_LETTER_REASON_EXPIRED:        "expired",
	pb.DeadLetterReason_DEAD_LETTER_REASON_OVERFLOW:       "overflow",
}

// append appends a section with the annotations of a and the annotations of the message to b. rest contains the
// other sections before the body.
func (a *annotations) append(b, before []byte) (out, rest []byte) {
	b, c := begin(section(b, wire.SectionMessageAnnotations), codeMap)
	if len(before) > 0 {
		if code, content, err := descriptor(before); err == nil && code == wire.SectionMessageAnnotations {
			if v, behind, err := read(content); err == nil {
				before = behind
				b = a.keep(b, &c, v)
			}
		}
	}
	if a.deliverAt != 0 {
		b = appendLong(c.key(b, annotationDeliveryTime), a.deliverAt)
	}
	if a.replyQueue {
		b = append(c.key(b, annotationReplyTo), codeByte, 0)
	}
	if a.origin != nil {
		b = appendOrigin(b, &c, a.origin)
	}
	return c.end(b), before
}

func (c *compound) key(b []byte, key string) []byte {
	c.count += 2
	return wire.AppendSymbol(b, wire.Symbol(key))
}

func appendOrigin(b []byte, c *compound, l *pb.DeadLetter) []byte {
	b = wire.AppendString(c.key(b, annotationOriginAddress), l.GetQueue())
	b = wire.AppendString(c.key(b, annotationOriginQueue), l.GetQueue())
	b = wire.AppendString(c.key(b, annotationOriginSubscription), l.GetSubscription())
	b = wire.AppendUlong(c.key(b, annotationOriginSequence), l.GetSequence())
	b = wire.AppendString(c.key(b, annotationOriginReason), reasonNames[l.GetReason()])
	b = wire.AppendUint(c.key(b, annotationOriginDeliveries), l.GetDeliveries())
	return appendTimestamp(c.key(b, annotationOriginTime), l.GetMovedAt().AsTime().UnixMilli())
}

// isOrigin reports whether appendOrigin appends an annotation with this key.
func isOrigin(key []byte) bool {
	switch string(key) {
	case annotationOriginAddress, annotationOriginQueue, annotationOriginSubscription, annotationOriginSequence,
		annotationOriginReason, annotationOriginDeliveries, annotationOriginTime:
		return true
	}
	return false
}

// keep appends the annotations of the message, except those that a replaces.
func (a *annotations) keep(b []byte, c *compound, v value) []byte {
	for data := v.data; len(data) > 0; {
		key, content, err := read(data)
		if err != nil {
			return b
		}
		_, rest, err := read(content)
		if err != nil {
			return b
		}
		if !key.isSymbol() || a.origin == nil || !isOrigin(key.data) {
			b = append(b, data[:len(data)-len(rest)]...)
			c.count += 2
		}
		data = rest
	}
	return b
}
