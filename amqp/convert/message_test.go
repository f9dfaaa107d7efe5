// SPDX-License-Identifier: Apache-2.0

package convert

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
)

var published = time.UnixMilli(1_800_000_000_000)

// deliver returns a message as a consumer receives it: after encoding with protobuf and the store's encoding.
func deliver(t testing.TB, m *pb.Message) *pb.StoredMessage {
	t.Helper()
	encoded, err := proto.Marshal(m)
	require.NoError(t, err)
	sent := new(pb.Message)
	require.NoError(t, proto.Unmarshal(encoded, sent))
	a, err := protoconv.Attributes(sent, published.UnixMilli())
	require.NoError(t, err)
	record, err := txn.AppendMessage(nil, published.UnixMilli(), &a, txn.Properties(sent.GetProperties()), sent.GetBody())
	require.NoError(t, err)
	all, err := protoconv.StoredMessages([]store.Delivery{{Sequence: 1, Record: record}}, false)
	require.NoError(t, err)
	return all[0]
}

// A message received by AMQP is delivered by AMQP unchanged.
func TestRoundTripIsUnchanged(t *testing.T) {
	seed := rand.Uint64()
	kinds := map[byte]int{}
	for i := range uint64(20_000) {
		g := generator{rand.New(rand.NewPCG(seed, i))}
		all, keep := g.message()
		m, to, err := Decode(all)
		require.NoError(t, err, "seed %d/%d: %x", seed, i, all)
		readByOtherClients(t, all)
		s := deliver(t, m)
		out := Append([]byte("before"), s, published.Add(time.Second))
		require.Equal(t, "before", string(out[:6]))
		require.Equal(t, string(keep), string(cutHeader(t, out[6:])), "seed %d/%d: %x", seed, i, all)

		again, toAgain, err := Decode(out[6:])
		require.NoError(t, err, "seed %d/%d", seed, i)
		require.Equal(t, to, toAgain)
		require.Equal(t, m.GetTypedProperties()[SectionsKey].GetBytesValue(),
			again.GetTypedProperties()[SectionsKey].GetBytesValue(), "seed %d/%d", seed, i)
		kinds[m.GetTypedProperties()[SectionsKey].GetBytesValue()[0]&bodyKind]++
	}
	require.Len(t, kinds, 3)
}

// readByOtherClients decodes a message with package wire, like a client.
func readByOtherClients(t testing.TB, b []byte) {
	t.Helper()
	for len(b) > 0 {
		s, rest, err := wire.NextSection(b)
		require.NoError(t, err, "%x", b)
		_, behind, err := wire.DecodeValue(s.Value)
		require.NoError(t, err, "%x", s.Value)
		require.Empty(t, behind)
		b = rest
	}
}

// cutHeader returns a message without its optional header.
func cutHeader(t testing.TB, b []byte) []byte {
	t.Helper()
	if len(b) == 0 {
		return b
	}
	code, content, err := descriptor(b)
	require.NoError(t, err)
	if code != wire.SectionHeader {
		return b
	}
	_, rest, err := read(content)
	require.NoError(t, err)
	return rest
}

// A gRPC message keeps its fields when an AMQP client forwards it.
func TestRoundTripThroughGRPC(t *testing.T) {
	m := &pb.Message{
		Body: []byte("body"), MessageId: "m", CorrelationId: "c", ReplyTo: "answers", ContentType: "application/json",
		Subject: "order", Group: "eu", Priority: new(uint32(7)), ExpiresAt: timestamppb.New(published.Add(time.Hour)),
		DeliverAt: timestamppb.New(published.Add(time.Minute)),
		Properties: map[string]string{
			"a": "", "ä": "x", strings.Repeat("k", 255): strings.Repeat("v", 300), "JMSXUserID": "me",
		},
		TypedProperties: map[string]*pb.PropertyValue{
			"yes":     {Kind: &pb.PropertyValue_BoolValue{BoolValue: true}},
			"no":      {Kind: &pb.PropertyValue_BoolValue{}},
			"max":     {Kind: &pb.PropertyValue_IntValue{IntValue: math.MaxInt64}},
			"min":     {Kind: &pb.PropertyValue_IntValue{IntValue: math.MinInt64}},
			"small":   {Kind: &pb.PropertyValue_IntValue{IntValue: -128}},
			"double":  {Kind: &pb.PropertyValue_DoubleValue{DoubleValue: 1e300}},
			"bytes":   {Kind: &pb.PropertyValue_BytesValue{BytesValue: []byte{0, 255}}},
			"nothing": {Kind: &pb.PropertyValue_BytesValue{BytesValue: []byte{}}},

			"JMSXGroupSeq": {Kind: &pb.PropertyValue_IntValue{IntValue: 3}},
		},
	}
	for _, id := range []string{
		"m", "ID:m", "ID:AMQP_ULONG:18446744073709551615", "ID:AMQP_UUID:01020304-0506-0708-090a-0b0c0d0e0f10",
		"ID:AMQP_BINARY:00FF", "ID:AMQP_STRING:ID:AMQP_ULONG:5",
	} {
		m.MessageId, m.CorrelationId = id, id
		b := Append(nil, deliver(t, m), published)
		readByOtherClients(t, b)
		back, _, err := Decode(b)
		require.NoError(t, err)
		flags := back.GetTypedProperties()[SectionsKey].GetBytesValue()[0]
		require.NotZero(t, flags&isDurable)
		require.Contains(t, string(b), string(appendTimestamp(nil, published.UnixMilli())), "creation-time")
		require.Equal(t, time.Hour, back.GetTtl().AsDuration())
		back.ExpiresAt, back.Ttl = m.GetExpiresAt(), nil
		delete(back.GetTypedProperties(), SectionsKey)
		require.True(t, proto.Equal(m, back), "%v\n%v", m, back)
	}
	// An empty message.
	back, _, err := Decode(Append(nil, &pb.StoredMessage{Message: &pb.Message{}}, published))
	require.NoError(t, err)
	delete(back.GetTypedProperties(), SectionsKey)
	require.True(t, proto.Equal(&pb.Message{}, back), "%v", back)
}

// A string that only resembles a typed ID remains a string.
func TestInvalidIDs(t *testing.T) {
	for _, id := range []string{
		"ID:AMQP_ULONG:x", "ID:AMQP_ULONG:", "ID:AMQP_UUID:0102", "ID:AMQP_BINARY:0", "ID:AMQP_OTHER:1", "ID:AMQP_",
		"AMQP_ULONG:5", ":",
	} {
		v, rest, err := read(appendID(nil, id))
		require.NoError(t, err)
		require.Empty(t, rest)
		require.True(t, v.isString(), id)
		require.Equal(t, id, string(v.data))
	}
}

// The header contains the remaining time to live, and the number of failed deliveries as the delivery count.
func TestHeaderOfADelivery(t *testing.T) {
	received := []byte{
		0, codeUlong8, wire.SectionHeader, codeList8, 9, 3, codeTrue, codeUbyte, 200, codeUint, 0, 0, 0x27, 0x10, // 10 s
		0, codeUlong8, wire.SectionData, codeBinary8, 1, 'x',
	}
	m, _, err := Decode(received)
	require.NoError(t, err)
	require.Equal(t, uint32(9), m.GetPriority())
	require.Equal(t, 10*time.Second, m.GetTtl().AsDuration())
	s := deliver(t, m)
	require.Equal(t, received, Append(nil, s, published))
	for _, c := range []struct {
		after time.Duration
		ttl   int64
	}{{0, 10_000}, {4 * time.Second, 6000}, {9999 * time.Millisecond, 1}, {time.Minute, 1}} {
		s.DeliveryCount = 2
		h := headerOf(t, Append(nil, s, published.Add(c.after)))
		require.Len(t, h, 5)
		require.Equal(t, byte(200), h[1].data[0])
		ttl, _ := h[2].integer()
		require.Equal(t, c.ttl, ttl)
		require.True(t, h[3].isNull())
		count, _ := h[4].integer()
		require.Equal(t, int64(2), count)
	}
	// An expiry beyond the range of the header, and no expiry.
	s.Message.ExpiresAt = timestamppb.New(published.Add(50 * 24 * time.Hour))
	require.True(t, headerOf(t, Append(nil, s, published))[2].isNull())
	s.Message.ExpiresAt = nil
	require.True(t, headerOf(t, Append(nil, s, published))[2].isNull())
}

func headerOf(t testing.TB, b []byte) (fields []value) {
	t.Helper()
	code, content, err := descriptor(b)
	require.NoError(t, err)
	require.Equal(t, byte(wire.SectionHeader), code)
	return elements(t, content)
}

// elements returns the values of a list or map.
func elements(t testing.TB, b []byte) (all []value) {
	t.Helper()
	list, _, err := read(b)
	require.NoError(t, err)
	for rest := list.data; len(rest) > 0; {
		var v value
		v, rest, err = read(rest)
		require.NoError(t, err)
		all = append(all, v)
	}
	require.Len(t, all, list.count)
	return all
}

// annotationsOf returns the message annotations.
func annotationsOf(t testing.TB, b []byte) map[string]value {
	t.Helper()
	code, content, err := descriptor(cutHeader(t, b))
	require.NoError(t, err)
	require.Equal(t, byte(wire.SectionMessageAnnotations), code)
	all, out := elements(t, content), map[string]value{}
	for i := 0; i < len(all); i += 2 {
		require.NotContains(t, out, string(all[i].data))
		out[string(all[i].data)] = all[i+1]
	}
	return out
}

// Annotations describe the origin of a dead letter; other annotations and the bare message are unchanged.
func TestDeadLetter(t *testing.T) {
	letter := &pb.DeadLetter{
		Queue: "orders", Subscription: "billing", Sequence: 300, Reason: pb.DeadLetterReason_DEAD_LETTER_REASON_REJECTED,
		Deliveries: 3, MovedAt: timestamppb.New(published),
	}
	g := generator{rand.New(rand.NewPCG(1, 2))}
	for i := range 2000 {
		received, keep := g.message()
		if i%4 == 0 {
			received, keep = nil, nil
		}
		s := &pb.StoredMessage{Message: &pb.Message{Body: []byte("x"), ReplyTo: "r"}}
		if received != nil {
			m, _, err := Decode(received)
			require.NoError(t, err)
			s = deliver(t, m)
		}
		s.DeadLetter = letter
		out := Append(nil, s, published)
		readByOtherClients(t, out)
		a := annotationsOf(t, out)
		require.Equal(t, "orders", string(a["x-opt-ORIG-QUEUE"].data))
		require.Equal(t, "orders", string(a["x-opt-ORIG-ADDRESS"].data))
		require.Equal(t, "billing", string(a["x-opt-dead-letter-subscription"].data))
		require.Equal(t, "rejected", string(a["x-opt-dead-letter-reason"].data))
		sequence, _ := a["x-opt-dead-letter-sequence"].integer()
		require.Equal(t, int64(300), sequence)

		// If the message is forwarded and dead-lettered again, the annotations describe the second move.
		m, _, err := Decode(out)
		require.NoError(t, err)
		s = deliver(t, m)
		s.DeadLetter = proto.CloneOf(letter)
		s.DeadLetter.Queue = "other"
		again := annotationsOf(t, Append(nil, s, published))
		require.Equal(t, "other", string(again["x-opt-ORIG-QUEUE"].data))
		require.Len(t, again, len(a))
		if received == nil {
			continue
		}
		require.Equal(t, cutAnnotations(t, keep), cutAnnotations(t, cutHeader(t, out)))
	}
}

// cutAnnotations returns a message without its optional message annotations.
func cutAnnotations(t testing.TB, b []byte) []byte {
	t.Helper()
	if len(b) == 0 {
		return []byte{}
	}
	code, content, err := descriptor(b)
	require.NoError(t, err)
	if code != wire.SectionMessageAnnotations {
		return append([]byte{}, b...)
	}
	_, rest, err := read(content)
	require.NoError(t, err)
	return append([]byte{}, rest...)
}

// Each scheduling annotation determines the delivery time.
func TestSchedule(t *testing.T) {
	number := func(code byte, ms uint64) []byte { return binary.BigEndian.AppendUint64([]byte{code}, ms) }
	annotated := func(pairs ...any) []byte {
		g := generator{rand.New(rand.NewPCG(3, 4))}
		var data []byte
		for i := 0; i < len(pairs); i += 2 {
			data = append(wire.AppendSymbol(data, wire.Symbol(pairs[i].(string))), pairs[i+1].([]byte)...)
		}
		b := g.compound(section(nil, wire.SectionMessageAnnotations), codeMap8, len(pairs), data)
		return wire.AppendBinary(section(b, wire.SectionData), "x")
	}
	for _, c := range []struct {
		message []byte
		at      int64
		delay   time.Duration
		want    string // part of the error
	}{
		{message: annotated("x-opt-delivery-time", number(codeLong, 1_900_000_000_123)), at: 1_900_000_000_123},
		{message: annotated("x-opt-delivery-time", number(codeTimestamp, 1_900_000_000_123)), at: 1_900_000_000_123},
		{message: annotated("x-opt-scheduled-enqueue-time", number(codeTimestamp, 1_900_000_000_123)), at: 1_900_000_000_123},
		{message: annotated("x-opt-delivery-delay", []byte{codeUint8, 200}), delay: 200 * time.Millisecond},
		{
			message: annotated("x-opt-delivery-delay", []byte{codeUint8, 200}, "x-opt-delivery-time", number(codeUlong, 5)),
			at:      5,
		},
		{message: annotated("x-opt-delivery-time", []byte{codeLong8, 0})},
		{message: annotated("x-opt-delivery-time", []byte{codeNull})},
		{message: annotated("x-opt-delivery-delay", []byte{codeNull})},
		{message: annotated("x-opt-delivery-time", number(codeLong, 1<<60)), want: "delivery time"},
		{message: annotated("x-opt-delivery-time", []byte{codeTrue}), want: "delivery time"},
		{message: annotated("x-opt-delivery-delay", []byte{codeLong8, 0xff}), want: "delivery delay"},
	} {
		m, _, err := Decode(c.message)
		if c.want != "" {
			var refusal *wire.Error
			require.ErrorAs(t, err, &refusal)
			require.Equal(t, wire.ConditionInvalid, refusal.Condition)
			require.Contains(t, refusal.Description, c.want)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.at != 0, m.GetDeliverAt() != nil)
		if c.at != 0 {
			require.Equal(t, c.at, m.GetDeliverAt().AsTime().UnixMilli())
		}
		require.Equal(t, c.delay, m.GetDelay().AsDuration())
		require.Equal(t, c.message, Append(nil, deliver(t, m), published))
	}
}

// If a gRPC client publishes an AMQP message with a different body, or sets the property itself, the delivered
// message is valid and contains its fields.
func TestChangedByGRPCClient(t *testing.T) {
	g := generator{rand.New(rand.NewPCG(5, 6))}
	check := func(m *pb.Message) {
		out := Append(nil, &pb.StoredMessage{Message: m}, published)
		back, _, err := Decode(out)
		require.NoError(t, err, "%x", out)
		require.Equal(t, string(m.GetBody()), string(back.GetBody()))
	}
	for range 5000 {
		received, _ := g.message()
		m, _, err := Decode(received)
		require.NoError(t, err)
		v := m.GetTypedProperties()[SectionsKey].GetKind().(*pb.PropertyValue_BytesValue)
		if v.BytesValue[0]&bodyKind == bodySections {
			continue
		}
		m.Body = append([]byte("changed"), m.GetBody()...)
		check(m)
		m.Body = m.GetBody()[len("changed"):]
		v.BytesValue = v.BytesValue[:g.IntN(len(v.BytesValue))]
		check(m)
	}
}

// Invalid messages, and messages that cannot be stored, are rejected.
func TestInvalidMessages(t *testing.T) {
	data := func(before ...byte) []byte {
		return append(before, 0, codeUlong8, wire.SectionData, codeBinary8, 1, 'x')
	}
	long := func(i int, appendValue func([]byte, string) []byte) []byte {
		b, f := beginFields(section(nil, wire.SectionProperties))
		b = appendValue(f.set(b, i), strings.Repeat("i", 1025))
		return data(f.end(b)...)
	}
	deep := strings.Repeat("\xc0\x03\x01", 1)
	for range 60 {
		deep = string(appendCompound(nil, codeList8, 1, []byte(deep)))
	}
	large, c := begin(section(nil, wire.SectionApplicationProperties), codeMap)
	large = wire.AppendString(wire.AppendString(large, "k"), strings.Repeat("v", 64<<10))
	c.count = 2
	reserved, r := begin(section(nil, wire.SectionApplicationProperties), codeMap)
	reserved = wire.AppendString(wire.AppendString(reserved, SectionsKey), "v")
	r.count = 2
	origin, o := begin(section(nil, wire.SectionApplicationProperties), codeMap)
	origin = wire.AppendString(wire.AppendString(origin, ContainerKey), "v")
	o.count = 2
	for _, c := range []struct {
		name    string
		message []byte
		want    string
	}{
		{"no section", []byte("hello"), "0x68"},
		{"section of another type", []byte{0, codeUlong8, 0x10, codeList0}, "unknown descriptor"},
		{"truncated", []byte{0, codeUlong8, wire.SectionData}, "its descriptor"},
		{"truncated value", []byte{0, codeUlong8, wire.SectionData, codeBinary8, 5, 'x'}, "5 bytes"},
		{
			"two values",
			[]byte{0, codeUlong8, wire.SectionValue, codeNull, 0, codeUlong8, wire.SectionValue, codeNull},
			"unexpected section",
		},
		{
			"wrong order", data(0, codeUlong8, wire.SectionFooter, codeMap8, 1, 0),
			"amqp:data:binary after",
		},
		{
			"wrong order before",
			data(0, codeUlong8, wire.SectionProperties, codeList0, 0, codeUlong8, wire.SectionHeader, codeList0),
			"unexpected section",
		},
		{
			"data that is a string",
			[]byte{0, codeUlong8, wire.SectionData, codeString8, 1, 'x'},
			"type 0xa1",
		},
		{
			"header that is a map", data(0, codeUlong8, wire.SectionHeader, codeMap8, 1, 0),
			"type 0xc1",
		},
		{"unknown type", []byte{0, codeUlong8, wire.SectionValue, 0x99}, "code 0x99"},
		{"invalid UTF-8", []byte{0, codeUlong8, wire.SectionValue, codeString8, 1, 0xff}, "not UTF-8"},
		{"odd map", []byte{0, codeUlong8, wire.SectionValue, codeMap8, 2, 1, codeNull}, "1 keys"},
		{"too few in a list", []byte{0, codeUlong8, wire.SectionValue, codeList8, 2, 2, codeNull}, "missing value"},
		{
			"too many in a list",
			[]byte{0, codeUlong8, wire.SectionValue, codeList8, 3, 1, codeNull, codeNull},
			"1 bytes after",
		},
		{"too deep", append([]byte{0, codeUlong8, wire.SectionValue}, deep...), "than 32"},
		{"boolean", []byte{0, codeUlong8, wire.SectionValue, codeBool, 2}, "is 2"},
		{"durable is a number", data(0, codeUlong8, wire.SectionHeader, codeList8, 3, 1, codeUbyte, 1), "a boolean"},
		{
			"priority is a uint", data(0, codeUlong8, wire.SectionHeader, codeList8, 3, 2, codeNull, codeUint0),
			"a ubyte",
		},
		{
			"message-id is a list", data(0, codeUlong8, wire.SectionProperties, codeList8, 2, 1, codeList0),
			"type 0x45",
		},
		{
			"message-id too long", long(fieldMessageID, wire.AppendString),
			"message-id has 1025",
		},
		{"message-id of bytes too long", long(fieldMessageID, wire.AppendBinary), "message-id has"},
		{"reply-to too long", long(fieldReplyTo, wire.AppendString), "reply-to has"},
		{"properties too long", data(c.end(large)...), "sections before"},
		{"reserved name of the container", data(o.end(origin)...), "amqp.container"},
		{"reserved name of the sections", data(r.end(reserved)...), "amqp.sections"},
	} {
		m, _, err := Decode(c.message)
		require.Nil(t, m, c.name)
		var refusal *wire.Error
		require.ErrorAs(t, err, &refusal, c.name)
		require.Contains(t, err.Error(), c.want, c.name)
	}
}

func appendCompound(b []byte, code byte, count int, data []byte) []byte {
	return generator{rand.New(rand.NewPCG(1, 1))}.compound(b, code, count, data)
}
