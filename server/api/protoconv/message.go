// SPDX-License-Identifier: Apache-2.0

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
		m.GetSubject() != "" || len(m.GetTypedProperties()) > 0 || SaysHowDelivered(m)
}

// SaysHowDelivered reports whether a message has a field that controls its delivery.
func SaysHowDelivered(m *pb.Message) bool {
	return m.Group != "" || m.Priority != nil || m.ExpiresAt != nil || m.Ttl != nil || m.DeliverAt != nil || m.Delay != nil
}

// CheckAttributes validates the typed properties, the priority and the times of a message, and returns the minimum
// encoded size of the attributes. Individual limits are checked during encoding.
func CheckAttributes(m *pb.Message) (sizeBytes int, err error) {
	sizeBytes = len(m.GetMessageId()) + len(m.GetCorrelationId()) + len(m.GetReplyTo()) + len(m.GetContentType()) +
		len(m.GetSubject()) + len(m.GetGroup())
	if SaysHowDelivered(m) {
		if err := checkHowDelivered(m); err != nil {
			return 0, err
		}
		sizeBytes += timesBytes
	}
	for k, v := range m.GetTypedProperties() {
		if v.GetKind() == nil {
			return 0, fmt.Errorf("%w: typed property %.40q has no value; put texts into `properties`", apierror.ErrInvalid,
				k)
		}
		sizeBytes += len(k) + len(v.GetBytesValue()) + 1
	}
	return sizeBytes, nil
}

// timesBytes is the approximate size of a priority and two times.
const timesBytes = 16

// checkHowDelivered is CheckAttributes for the fields that control delivery.
func checkHowDelivered(m *pb.Message) error {
	if m.Priority != nil && m.GetPriority() > txn.MaxPriority {
		return fmt.Errorf("%w: priority is %d, must be 0 to %d", apierror.ErrInvalid, m.GetPriority(), txn.MaxPriority)
	}
	if err := checkTime("expires_at", m.GetExpiresAt(), "ttl", m.GetTtl()); err != nil {
		return err
	}
	if m.Ttl != nil && m.GetTtl().AsDuration() < time.Millisecond {
		return fmt.Errorf("%w: ttl is %s, must be at least 1 ms", apierror.ErrInvalid, m.GetTtl().AsDuration())
	}
	return checkTime("deliver_at", m.GetDeliverAt(), "delay", m.GetDelay())
}

// checkTime checks a time of a message, which can be absolute or relative.
func checkTime(atName string, at *timestamppb.Timestamp, inName string, in *durationpb.Duration) error {
	switch {
	case at != nil && in != nil:
		return fmt.Errorf("%w: set %s or %s, not both", apierror.ErrInvalid, atName, inName)
	case in != nil:
		_, err := Millis(inName, in)
		return err
	case at == nil:
		return nil
	}
	if ms := at.AsTime().UnixMilli(); !at.IsValid() || ms < 1 || ms > txn.MaxTimeMS {
		return fmt.Errorf("%w: %s is %d s and %d ns since 1970, must be after 1970 and before the year 10000",
			apierror.ErrInvalid, atName, at.GetSeconds(), at.GetNanos())
	}
	return nil
}

// Millis converts a duration, which may be nil: 0 to txn.MaxTime, rounded up to a millisecond.
func Millis(name string, d *durationpb.Duration) (uint64, error) {
	if d == nil {
		return 0, nil
	}
	if !d.IsValid() || d.GetSeconds() < 0 || d.GetNanos() < 0 || d.GetSeconds() > txn.MaxTime/1000 {
		return 0, fmt.Errorf("%w: %s is %d s and %d ns, must be 0 to 100 years", apierror.ErrInvalid, name, d.GetSeconds(),
			d.GetNanos())
	}
	return uint64(d.GetSeconds())*1000 + uint64(d.GetNanos()+999_999)/1_000_000, nil
}

// atOrIn returns an absolute or relative time in milliseconds since 1970; 0 if neither is set.
func atOrIn(nowMS int64, at *timestamppb.Timestamp, in *durationpb.Duration) int64 {
	switch {
	case at != nil:
		return at.AsTime().UnixMilli()
	case in != nil:
		ms, _ := Millis("", in) // checked before
		return min(nowMS+int64(ms), txn.MaxTimeMS)
	}
	return 0
}

// Attributes converts the standard fields and typed properties of a message validated by CheckAttributes. nowMS is the
// time of acceptance in milliseconds since 1970.
func Attributes(m *pb.Message, nowMS int64) txn.Attributes {
	a := txn.Attributes{
		MessageID: m.GetMessageId(), CorrelationID: m.GetCorrelationId(), ReplyTo: m.GetReplyTo(),
		ContentType: m.GetContentType(), Subject: m.GetSubject(), Group: m.GetGroup(),
	}
	if SaysHowDelivered(m) {
		if m.Priority != nil {
			a.Priority = new(uint8(m.GetPriority()))
		}
		a.ExpiresAtMS, a.DeliverAtMS = atOrIn(nowMS, m.GetExpiresAt(), m.GetTtl()), atOrIn(nowMS, m.GetDeliverAt(),
			m.GetDelay())
	}
	if n := len(m.GetTypedProperties()); n > 0 {
		a.Values = make([]txn.TypedProperty, 0, n)
	}
	for k, v := range m.GetTypedProperties() {
		a.Values = append(a.Values, txn.TypedProperty{Key: k, Value: propertyValue(v)})
	}
	txn.SortValues(a.Values)
	return a
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

// setAttributes copies the attributes of a stored message.
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

// millisToProto converts milliseconds since 1970; 0 returns nil.
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

// deadLetterToProto describes the origin of a dead letter; nil for other messages.
func deadLetterToProto(l *txn.DeadLetter) *pb.DeadLetter {
	if l == nil {
		return nil
	}
	return &pb.DeadLetter{
		Queue: l.Queue, Subscription: l.Subscription, Sequence: l.Sequence, Reason: pb.DeadLetterReason(l.Reason),
		Deliveries: l.Deliveries, MovedAt: timestamppb.New(time.UnixMilli(l.MovedMS)),
	}
}
