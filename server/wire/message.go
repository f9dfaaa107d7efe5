// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// HasAttributes tells whether a message has standard fields or typed properties.
func HasAttributes(m *pb.Message) bool {
	return m.GetMessageId() != "" || m.GetCorrelationId() != "" || m.GetReplyTo() != "" || m.GetContentType() != "" ||
		m.GetSubject() != "" || len(m.GetTypedProperties()) > 0
}

// CheckAttributes refuses a typed property without a type, and returns how many bytes the attributes take at least. The
// limits of each are checked when they are encoded.
func CheckAttributes(m *pb.Message) (sizeBytes int, err error) {
	sizeBytes = len(m.GetMessageId()) + len(m.GetCorrelationId()) + len(m.GetReplyTo()) + len(m.GetContentType()) +
		len(m.GetSubject())
	for k, v := range m.GetTypedProperties() {
		if v.GetKind() == nil {
			return 0, fmt.Errorf("%w: the typed property %.40q has no value; a text belongs into `properties`", ErrInvalid,
				k)
		}
		sizeBytes += len(k) + len(v.GetBytesValue()) + 1
	}
	return sizeBytes, nil
}

// Attributes converts the standard fields and typed properties of a message that CheckAttributes has passed.
func Attributes(m *pb.Message) txn.Attributes {
	a := txn.Attributes{
		MessageID: m.GetMessageId(), CorrelationID: m.GetCorrelationId(), ReplyTo: m.GetReplyTo(),
		ContentType: m.GetContentType(), Subject: m.GetSubject(),
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

// setAttributes gives a message the attributes of a stored one.
func setAttributes(to *pb.Message, m *txn.Message) {
	if !m.HasAttributes() {
		return
	}
	a := m.Attributes()
	to.MessageId, to.CorrelationId, to.ReplyTo, to.ContentType, to.Subject = a.MessageID, a.CorrelationID, a.ReplyTo,
		a.ContentType, a.Subject
	if len(a.Values) > 0 {
		to.TypedProperties = make(map[string]*pb.PropertyValue, len(a.Values))
	}
	for _, p := range a.Values {
		to.TypedProperties[p.Key] = propertyValueToProto(p.Value)
	}
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

// deadLetterToProto says where a message comes from; nil if it is no dead letter.
func deadLetterToProto(l *txn.DeadLetter) *pb.DeadLetter {
	if l == nil {
		return nil
	}
	return &pb.DeadLetter{
		Queue: l.Queue, Subscription: l.Subscription, Sequence: l.Sequence, Reason: pb.DeadLetterReason(l.Reason),
		Deliveries: l.Deliveries, MovedAt: timestamppb.New(time.UnixMilli(l.MovedMS)),
	}
}
