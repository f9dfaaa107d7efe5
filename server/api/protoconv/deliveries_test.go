// SPDX-License-Identifier: Apache-2.0

package protoconv

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/proto/codec"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/delivery/dispatch"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// The custom encoding of deliveries can be decoded by the protobuf library, and the result equals the expected
// message.
func TestDeliveriesMatchGeneratedEncoding(t *testing.T) {
	record := func(timeMS int64, body []byte, properties map[string]string) []byte {
		b, err := txn.AppendMessage(nil, timeMS, nil, txn.Properties(properties), body)
		require.NoError(t, err)
		return b
	}
	long := make([]byte, 70_000)
	now := time.Now().UnixMilli()
	messages := []dispatch.Message{
		{Sequence: 1, Record: record(now, []byte("body"), nil)},
		{
			Sequence: 1 << 40, DeliveryCount: 1 << 31,
			Record: record(now, nil, map[string]string{"a": "", "key": string(long[:300])}),
		},
		{Sequence: 3, DeliveryCount: 1, Record: record(0, long, map[string]string{"k": "v"})},
		{Sequence: 4, Record: record(-1, long[:200], nil)},
		{Sequence: 5, Record: record(-1000, nil, nil)},
		{Sequence: 6, Record: described(t, now, &pb.Message{
			Body: []byte("body"), Properties: map[string]string{"k": "v"}, MessageId: "m", CorrelationId: "c",
			ReplyTo: "answers", ContentType: "text/plain", Subject: string(long[:300]),
			TypedProperties: map[string]*pb.PropertyValue{
				"no":     {Kind: &pb.PropertyValue_BoolValue{}},
				"yes":    {Kind: &pb.PropertyValue_BoolValue{BoolValue: true}},
				"zero":   {Kind: &pb.PropertyValue_IntValue{}},
				"least":  {Kind: &pb.PropertyValue_IntValue{IntValue: math.MinInt64}},
				"nil":    {Kind: &pb.PropertyValue_BytesValue{BytesValue: []byte{}}},
				"bytes":  {Kind: &pb.PropertyValue_BytesValue{BytesValue: long[:200]}},
				"half":   {Kind: &pb.PropertyValue_DoubleValue{DoubleValue: 0.5}},
				"double": {Kind: &pb.PropertyValue_DoubleValue{}},
			},
		})},
		{Sequence: 7, Record: described(t, now, &pb.Message{Subject: "s"})},
		{Sequence: 9, Record: described(t, now, &pb.Message{
			Group: "g", Priority: new(uint32(0)), ExpiresAt: timestamppb.New(time.UnixMilli(1)),
			DeliverAt: timestamppb.New(time.UnixMilli(txn.MaxTimeMS)), Subject: "s",
			TypedProperties: map[string]*pb.PropertyValue{"n": {Kind: &pb.PropertyValue_IntValue{}}},
		})},
		{Sequence: 10, Record: described(t, now, &pb.Message{Priority: new(uint32(9))})},
		{Sequence: 8, DeliveryCount: 1, Record: dead(t, record(now, []byte("body"), nil))},
	}
	var d Deliveries // reused, as in a stream
	for _, event := range []dispatch.Event{
		{},
		{Confirmed: 1},
		{Messages: messages},
		{Messages: messages[3:], Confirmed: 1 << 63},
		{Messages: messages[:1]},
		{Confirmed: 300},
	} {
		left, err := d.Set(event, math.MaxInt)
		require.NoError(t, err)
		require.Empty(t, left)
		data, err := codec.New().Marshal(&d)
		require.NoError(t, err)
		encoded := data.Materialize()
		data.Free()
		var got pb.ConsumeResponse
		require.NoError(t, proto.Unmarshal(encoded, &got))
		stored, err := StoredMessages(event.Messages, false)
		require.NoError(t, err)
		want := &pb.ConsumeResponse{Messages: stored, Confirmed: event.Confirmed}
		require.True(t, proto.Equal(want, &got), "want %v\ngot %v", want, &got)
		require.Len(t, encoded, proto.Size(want))
		require.Equal(t, len(encoded), d.total)
		made := d.MakeMessage()
		d.Release()
		require.True(t, proto.Equal(want, made), "want %v\nmade %v", want, made)
	}
	broken := []dispatch.Message{{Sequence: 9, Record: []byte("no record")}}
	_, err := d.Set(dispatch.Event{Messages: broken}, math.MaxInt)
	require.ErrorIs(t, err, index.ErrDataLoss)

	// If the messages exceed the limit, as many as fit are sent, but at least one.
	for n := 1; n <= len(messages); n++ {
		_, err := d.Set(dispatch.Event{Messages: messages[:n]}, math.MaxInt)
		require.NoError(t, err)
		size := d.total
		left, err := d.Set(dispatch.Event{Messages: messages}, size)
		require.NoError(t, err)
		require.Len(t, left, len(messages)-n, "of %d bytes", size)
		require.Equal(t, size, d.total)
		left, err = d.Set(dispatch.Event{Messages: messages}, size-1)
		require.NoError(t, err)
		require.Len(t, left, len(messages)-max(n-1, 1), "of %d bytes", size-1)
	}
}

// described returns the record of a message with attributes. It also checks that the record is converted back to
// the message.
func described(t *testing.T, timeMS int64, m *pb.Message) []byte {
	t.Helper()
	require.True(t, HasAttributes(m))
	a, err := Attributes(m, timeMS)
	require.NoError(t, err)
	b, err := txn.AppendMessage(nil, timeMS, &a, txn.Properties(m.GetProperties()), m.GetBody())
	require.NoError(t, err)
	stored, err := StoredMessages([]dispatch.Message{{Sequence: 1, Record: b}}, false)
	require.NoError(t, err)
	if m.Body == nil {
		m.Body = []byte{}
	}
	require.True(t, proto.Equal(m, stored[0].GetMessage()), "%v\n%v", m, stored[0].GetMessage())
	return b
}

// dead converts a record to the record of a dead letter.
func dead(t *testing.T, rec []byte) []byte {
	t.Helper()
	out, err := txn.Relabel(rec, &txn.DeadLetter{
		Queue: "orders", Subscription: "default", Sequence: 7, Reason: txn.DeadRejected, Deliveries: 3, MovedMS: 1001,
	})
	require.NoError(t, err)
	return out
}

// The custom encoding supports all fields of a delivered message.
func TestDeliveriesEncodeEveryField(t *testing.T) {
	message := (&pb.Message{}).ProtoReflect().Descriptor()
	known := map[protoreflect.MessageDescriptor]map[protoreflect.Name]int{
		(&pb.ConsumeResponse{}).ProtoReflect().Descriptor(): {
			"messages": fieldMessages, "confirmed": fieldConfirmed,
			// These fields are rarely sent, in responses that the library encodes.
			"attached": 3, "queue_id": 4, "drained": 5, "drained_credit": 6, "waiting": 7, "moved": 8,
			"expired": 9, "refused": 10, "ack_timeout": 11,
		},
		message.Fields().ByName("properties").Message(): {"key": fieldKey, "value": fieldValue},
		(&pb.StoredMessage{}).ProtoReflect().Descriptor(): {
			"sequence": fieldSequence, "published_at": fieldPublishedAt, "delivery_count": fieldDeliveryCount,
			"message": fieldMessage, "dead_letter": fieldDeadLetter,
		},
		message: {
			"body": fieldBody, "properties": fieldProperties,
			"message_id": int(txn.AttributeMessageID), "correlation_id": int(txn.AttributeCorrelationID),
			"reply_to": int(txn.AttributeReplyTo), "content_type": int(txn.AttributeContentType),
			"subject": int(txn.AttributeSubject), "typed_properties": fieldTypedProperties,
			"group": int(txn.AttributeGroup), "priority": fieldPriority, "expires_at": fieldExpiresAt,
			"deliver_at": fieldDeliverAt, "ttl": 11, "delay": 13, // stored messages contain absolute times instead
		},
		message.Fields().ByName("typed_properties").Message(): {"key": fieldKey, "value": fieldValue},
		(&pb.PropertyValue{}).ProtoReflect().Descriptor(): {
			"bool_value": fieldBool, "int_value": fieldInt, "double_value": fieldDouble, "bytes_value": fieldBytes,
		},
		(&timestamppb.Timestamp{}).ProtoReflect().Descriptor(): {"seconds": fieldSeconds, "nanos": fieldNanos},
	}
	for d, names := range known {
		require.Equal(t, len(names), d.Fields().Len(), "%s has a field that is not encoded", d.FullName())
		for name, number := range names {
			require.Equal(t, protoreflect.FieldNumber(number), d.Fields().ByName(name).Number(), "%s.%s", d.FullName(),
				name)
		}
	}
}
