// SPDX-License-Identifier: Apache-2.0

// Package protoconv converts between protobuf messages and internal types. It is independent of the services.
package protoconv

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// HasAttributes reports whether a message has standard fields or typed properties.
func HasAttributes(m *pb.Message) bool {
	return m.GetMessageId() != "" || m.GetCorrelationId() != "" || m.GetReplyTo() != "" || m.GetContentType() != "" ||
		m.GetSubject() != "" || len(m.GetTypedProperties()) > 0 || ControlsDelivery(m)
}

// ControlsDelivery reports whether a message has a field that controls its delivery: a group, a priority, or a
// time.
func ControlsDelivery(m *pb.Message) bool {
	return m.Group != "" || m.Priority != nil || m.ExpiresAt != nil || m.Ttl != nil || m.DeliverAt != nil || m.Delay != nil
}

// AttributesBytes returns the approximate encoded size of the standard fields and the typed properties of a
// message.
func AttributesBytes(m *pb.Message) int {
	n := len(m.GetMessageId()) + len(m.GetCorrelationId()) + len(m.GetReplyTo()) + len(m.GetContentType()) +
		len(m.GetSubject()) + len(m.GetGroup())
	if ControlsDelivery(m) {
		n += timesBytes
	}
	for k, v := range m.GetTypedProperties() {
		n += len(k) + len(v.GetBytesValue()) + 1
	}
	return n
}

const timesBytes = 16 // approximate size of a priority and two times

// Millis returns a duration in milliseconds, rounded up. It returns 0 for nil. If the duration is negative or exceeds
// txn.MaxTime, it returns an error that contains name.
func Millis(name string, d *durationpb.Duration) (uint64, error) {
	return millis(name, d, apierror.ErrInvalid)
}

func millis(name string, d *durationpb.Duration, invalid error) (uint64, error) {
	if d == nil {
		return 0, nil
	}
	if !d.IsValid() || d.GetSeconds() < 0 || d.GetNanos() < 0 || d.GetSeconds() > txn.MaxTime/1000 {
		return 0, fmt.Errorf("%w: %s is %d s and %d ns, must be 0 to 100 years", invalid, name, d.GetSeconds(), d.GetNanos())
	}
	return uint64(d.GetSeconds())*1000 + uint64(d.GetNanos()+999_999)/1_000_000, nil
}

func setDelivery(a *txn.Attributes, m *pb.Message, nowMS int64) (err error) {
	if m.Priority != nil {
		a.Priority = new(uint8(min(m.GetPriority(), math.MaxUint8)))
	}
	if a.ExpiresAtMS, err = atOrIn(nowMS, "expires_at", m.GetExpiresAt(), "ttl", m.GetTtl()); err != nil {
		return err
	}
	if m.Ttl != nil && m.GetTtl().AsDuration() < time.Millisecond {
		return fmt.Errorf("%w: ttl is %s, must be at least 1 ms", txn.ErrInvalidMessage, m.GetTtl().AsDuration())
	}
	a.DeliverAtMS, err = atOrIn(nowMS, "deliver_at", m.GetDeliverAt(), "delay", m.GetDelay())
	return err
}

// atOrIn returns a time in milliseconds since 1970: `at` or, if `in` is set, nowMS plus `in`. It returns 0 if neither
// is set, and an error if both are set or the time is invalid.
func atOrIn(
	nowMS int64, atName string, at *timestamppb.Timestamp, inName string, in *durationpb.Duration,
) (int64, error) {
	switch {
	case at != nil && in != nil:
		return 0, fmt.Errorf("%w: set %s or %s, not both", txn.ErrInvalidMessage, atName, inName)
	case in != nil:
		ms, err := millis(inName, in, txn.ErrInvalidMessage)
		return min(nowMS+int64(ms), txn.MaxTimeMS), err
	case at == nil:
		return 0, nil
	}
	ms := at.AsTime().UnixMilli()
	if !at.IsValid() || ms == 0 { // 0 is reserved for no time
		return 0, fmt.Errorf("%w: %s is %d s and %d ns since 1970", txn.ErrInvalidMessage, atName, at.GetSeconds(),
			at.GetNanos())
	}
	return ms, nil
}

// Attributes converts the standard fields and the typed properties of a message that was accepted at nowMS, in
// milliseconds since 1970. If fields contradict each other or a time is invalid, the error wraps
// txn.ErrInvalidMessage. Attributes does not check limits.
func Attributes(m *pb.Message, nowMS int64) (txn.Attributes, error) {
	a := txn.Attributes{
		MessageID: m.GetMessageId(), CorrelationID: m.GetCorrelationId(), ReplyTo: m.GetReplyTo(),
		ContentType: m.GetContentType(), Subject: m.GetSubject(), Group: m.GetGroup(),
	}
	if ControlsDelivery(m) {
		if err := setDelivery(&a, m, nowMS); err != nil {
			return a, err
		}
	}
	if n := len(m.GetTypedProperties()); n > 0 {
		a.Values = make([]txn.TypedProperty, 0, n)
	}
	for k, v := range m.GetTypedProperties() {
		a.Values = append(a.Values, txn.TypedProperty{Key: k, Value: propertyValue(v)})
	}
	txn.SortValues(a.Values)
	return a, nil
}

func propertyValue(v *pb.PropertyValue) txn.Value {
	switch kind := v.GetKind().(type) {
	case *pb.PropertyValue_BoolValue:
		if kind.BoolValue {
			return txn.Value{Kind: txn.ValueBool, Bits: 1}
		}
		return txn.Value{Kind: txn.ValueBool}
	case *pb.PropertyValue_IntValue:
		return txn.Value{Kind: txn.ValueInt64, Bits: uint64(kind.IntValue)}
	case *pb.PropertyValue_DoubleValue:
		return txn.Value{Kind: txn.ValueDouble, Bits: math.Float64bits(kind.DoubleValue)}
	case *pb.PropertyValue_BytesValue:
		return txn.Value{Kind: txn.ValueBytes, Bytes: kind.BytesValue}
	}
	return txn.Value{}
}

func setAttributes(to *pb.Message, m *txn.Message) {
	if !m.HasAttributes() {
		return
	}
	a := m.Attributes()
	to.MessageId, to.CorrelationId, to.ReplyTo, to.ContentType, to.Subject, to.Group = a.MessageID, a.CorrelationID,
		a.ReplyTo, a.ContentType, a.Subject, a.Group
	if a.Priority != nil {
		to.Priority = new(uint32(*a.Priority))
	}
	to.ExpiresAt, to.DeliverAt = millisToProto(a.ExpiresAtMS), millisToProto(a.DeliverAtMS)
	if len(a.Values) > 0 {
		to.TypedProperties = make(map[string]*pb.PropertyValue, len(a.Values))
	}
	for _, p := range a.Values {
		to.TypedProperties[p.Key] = propertyValueToProto(p.Value)
	}
}

func millisToProto(ms int64) *timestamppb.Timestamp {
	if ms == 0 {
		return nil
	}
	return timestamppb.New(time.UnixMilli(ms))
}

func propertyValueToProto(v txn.Value) *pb.PropertyValue {
	switch v.Kind {
	case txn.ValueBool:
		return &pb.PropertyValue{Kind: &pb.PropertyValue_BoolValue{BoolValue: v.Bits == 1}}
	case txn.ValueInt64:
		return &pb.PropertyValue{Kind: &pb.PropertyValue_IntValue{IntValue: int64(v.Bits)}}
	case txn.ValueDouble:
		return &pb.PropertyValue{Kind: &pb.PropertyValue_DoubleValue{DoubleValue: math.Float64frombits(v.Bits)}}
	default:
		return &pb.PropertyValue{Kind: &pb.PropertyValue_BytesValue{BytesValue: v.Bytes}}
	}
}

func deadLetterToProto(l *txn.DeadLetter) *pb.DeadLetter {
	if l == nil {
		return nil
	}
	return &pb.DeadLetter{
		Queue: l.Queue, Subscription: l.Subscription, Sequence: l.Sequence, Reason: pb.DeadLetterReason(l.Reason),
		Deliveries: l.Deliveries, MovedAt: timestamppb.New(time.UnixMilli(l.MovedMS)),
	}
}
