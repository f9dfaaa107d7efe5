// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Types of JMS messages and destinations in annotations of Qpid JMS.
const (
	jmsMessage, jmsObject, jmsMap, jmsBytes, jmsStream, jmsTextMessage = 0, 1, 2, 3, 4, 5

	jmsQueue, jmsTemporaryQueue = 0, 2
)

// jms encodes a message as Qpid JMS does: persistent, to the queue orders, with all JMS fields.
func jms(kind byte, body []byte, contentType string) []byte {
	b := append(section(nil, wire.SectionHeader), codeList8, 9, 3, codeTrue, codeUbyte, 7)
	b = append(b, codeUint, 0, 0, 0xea, 0x60) // 60 s
	b, c := begin(section(b, wire.SectionMessageAnnotations), codeMap)
	b = append(c.key(b, "x-opt-jms-msg-type"), codeByte, kind)
	b = append(c.key(b, "x-opt-jms-dest"), codeByte, jmsQueue)
	b = append(c.key(b, "x-opt-jms-reply-to"), codeByte, jmsTemporaryQueue)
	b = binary.BigEndian.AppendUint64(append(c.key(b, "x-opt-delivery-time"), codeLong), 1_800_000_010_000)
	b = c.end(b)
	b, f := beginFields(section(b, wire.SectionProperties))
	b = wire.AppendString(f.set(b, fieldMessageID), "ID:0a1b-1:1:1-1")
	b = wire.AppendString(f.set(b, fieldTo), "orders")
	b = wire.AppendString(f.set(b, fieldSubject), "order.new")
	b = wire.AppendString(f.set(b, fieldReplyTo), "temp-1")
	b = append(append(f.set(b, fieldCorrelationID), codeUUID), "0123456789abcdef"...)
	if contentType != "" {
		b = wire.AppendSymbol(f.set(b, fieldContentType), wire.Symbol(contentType))
	}
	b = appendTimestamp(f.set(b, fieldAbsoluteExpiryTime), 1_800_000_060_000)
	b = appendTimestamp(f.set(b, fieldCreationTime), 1_800_000_000_000)
	b = wire.AppendString(f.set(b, fieldGroupID), "eu")
	b = wire.AppendUint(f.set(b, fieldGroupSequence), 3)
	b = f.end(b)
	b, c = begin(section(b, wire.SectionApplicationProperties), codeMap)
	for _, p := range []struct {
		key   string
		value []byte
	}{
		{"bool", []byte{codeTrue}},
		{"byte", []byte{codeByte, 0xff}},
		{"short", []byte{codeShort, 0xff, 0xfe}},
		{"int", []byte{codeInt, 0, 0, 1, 0}},
		{"long", []byte{codeLong, 0, 0, 0, 1, 0, 0, 0, 0}},
		{"float", []byte{codeFloat, 0x3f, 0xc0, 0, 0}},
		{"double", appendDouble(nil, 2.5)},
		{"string", wire.AppendString(nil, "text")},
		{"null", []byte{codeNull}},
	} {
		c.count += 2
		b = append(wire.AppendString(b, p.key), p.value...)
	}
	return append(c.end(b), body...)
}

func jmsText(text string) []byte {
	return jms(jmsTextMessage, wire.AppendString(section(nil, wire.SectionValue), text), "")
}

// A gRPC consumer receives each message type of Qpid JMS with all of its fields, and an AMQP consumer receives it
// unchanged.
func TestJMS(t *testing.T) {
	mapBody := func() []byte {
		b, c := begin(section(nil, wire.SectionValue), codeMap)
		b = append(wire.AppendString(b, "i"), codeInt8, 5)
		b = wire.AppendBinary(wire.AppendString(b, "raw"), []byte{1})
		c.count = 4
		return c.end(b)
	}()
	streamBody := func() []byte {
		b, c := begin(section(nil, wire.SectionSequence), codeList)
		b = wire.AppendString(append(b, codeTrue), "x")
		c.count = 2
		return c.end(b)
	}()
	for _, c := range []struct {
		name        string
		message     []byte
		body        string
		contentType string
	}{
		{"text", jmsText("grüße"), "grüße", ""},
		{"empty text", jmsText(""), "", ""},
		{"no text", jms(jmsTextMessage, append(section(nil, wire.SectionValue), codeNull), ""), "\x00\x53\x77\x40", ""},
		{
			"bytes", jms(jmsBytes, wire.AppendBinary(section(nil, wire.SectionData), "\x00\xff"), "application/octet-stream"),
			"\x00\xff", "application/octet-stream",
		},
		{"map", jms(jmsMap, mapBody, ""), string(mapBody), ""},
		{"stream", jms(jmsStream, streamBody, ""), string(streamBody), ""},
		{
			"object",
			jms(jmsObject, wire.AppendBinary(section(nil, wire.SectionData), "\xac\xed\x00\x05"),
				"application/x-java-serialized-object"),
			"\xac\xed\x00\x05", "application/x-java-serialized-object",
		},
		{"message", jms(jmsMessage, append(section(nil, wire.SectionValue), codeNull), ""), "\x00\x53\x77\x40", ""},
	} {
		m, to, err := Decode(c.message)
		require.NoError(t, err, c.name)
		require.Equal(t, "orders", to)
		s := deliver(t, m)
		got := s.GetMessage()
		require.Equal(t, c.body, string(got.GetBody()), c.name)
		require.Equal(t, c.contentType, got.GetContentType())
		require.Equal(t, "ID:0a1b-1:1:1-1", got.GetMessageId())
		require.Equal(t, "ID:AMQP_UUID:30313233-3435-3637-3839-616263646566", got.GetCorrelationId())
		require.Equal(t, "order.new", got.GetSubject())
		require.Equal(t, "temp-1", got.GetReplyTo())
		require.Equal(t, "eu", got.GetGroup())
		require.Equal(t, uint32(7), got.GetPriority())
		require.Equal(t, published.Add(time.Minute).UnixMilli(), got.GetExpiresAt().AsTime().UnixMilli())
		require.Equal(t, published.Add(10*time.Second).UnixMilli(), got.GetDeliverAt().AsTime().UnixMilli())
		require.Equal(t, map[string]string{"string": "text"}, got.GetProperties())
		typed := got.GetTypedProperties()
		require.True(t, typed["bool"].GetBoolValue())
		for key, want := range map[string]int64{"byte": -1, "short": -2, "int": 256, "long": 1 << 32, "JMSXGroupSeq": 3} {
			require.IsType(t, &pb.PropertyValue_IntValue{}, typed[key].GetKind(), key)
			require.Equal(t, want, typed[key].GetIntValue(), key)
		}
		require.InDelta(t, 1.5, typed["float"].GetDoubleValue(), 0)
		require.InDelta(t, 2.5, typed["double"].GetDoubleValue(), 0)
		require.Len(t, typed, 9) // with SectionsKey, without null

		require.Equal(t, c.message, Append(nil, s, published), c.name)
		// JMSXDeliveryCount is the number of failed deliveries plus one; JMSRedelivered means that it is above one.
		s.DeliveryCount = 1
		count, _ := headerOf(t, Append(nil, s, published))[4].integer()
		require.Equal(t, int64(1), count)
	}
}

// The type of a gRPC message for a JMS client depends on its content type and annotations.
func TestGRPCMessageForJMS(t *testing.T) {
	m := &pb.Message{Body: []byte("hello"), ContentType: "text/plain", ReplyTo: "answers"}
	out := Append(nil, deliver(t, m), published)
	a := annotationsOf(t, out)
	require.Equal(t, []byte{jmsQueue}, a["x-opt-jms-reply-to"].data)
	require.NotContains(t, a, "x-opt-jms-msg-type") // Qpid JMS then uses the content type: text/… is a TextMessage
	require.Contains(t, string(out), "\xa3\x0atext/plain")
	require.Equal(t, "\x00\x53\x75\xa0\x05hello", string(out[len(out)-10:]))
	_, content, err := descriptor(cutAnnotations(t, cutHeader(t, out)))
	require.NoError(t, err)
	require.Equal(t, codeTimestamp, int(elements(t, content)[fieldCreationTime].code)) // JMSTimestamp
	m = &pb.Message{ContentType: "große/sache"}
	require.NotContains(t, string(Append(nil, deliver(t, m), published)), "sache") // not a valid symbol
}
