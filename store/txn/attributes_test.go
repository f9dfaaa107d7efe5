// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// everyAttribute returns attributes with every field set.
func everyAttribute() *Attributes {
	return &Attributes{
		MessageID: "m-1", CorrelationID: "c-1", ReplyTo: "answers", ContentType: "application/json",
		Subject: "order.created", Group: "customer-7", Priority: new(uint8(0)), ExpiresAtMS: 1_800_000_000_000,
		DeliverAtMS: MaxTimeMS,
		Values: []TypedProperty{
			{Key: "blob", Value: Value{Kind: ValueBytes, Bytes: []byte{0, 1}}},
			{Key: "count", Value: Value{Kind: ValueInt64, Bits: math.MaxUint64}},
			{Key: "paid", Value: Value{Kind: ValueBool, Bits: 1}},
			{Key: "rate", Value: Value{Kind: ValueDouble, Bits: math.Float64bits(-0.5)}},
		},
		DeadLetter: &DeadLetter{
			Queue: "orders", Subscription: "default", Sequence: 1 << 40, Reason: DeadRejected, Deliveries: 3,
			MovedMS: 1_600_000_000_000,
		},
	}
}

// Attributes survive a round trip with and without properties and a body. Truncated messages are rejected.
func TestAttributesRoundTrip(t *testing.T) {
	full := everyAttribute()
	for name, a := range map[string]*Attributes{
		"all": full, "one": {Subject: "s"}, "longest": {ReplyTo: strings.Repeat("q", MaxAttributeBytes)},
		"values": {Values: full.Values}, "one value": {Values: full.Values[2:3]}, "dead": {DeadLetter: full.DeadLetter},
		"group": {Group: "g"}, "priority": {Priority: new(uint8(MaxPriority))}, "expires": {ExpiresAtMS: 1},
		"delay": {DeliverAtMS: 5, Values: full.Values},
	} {
		for _, props := range [][]Property{nil, {{"a", "1"}, {"b", ""}}} {
			for _, body := range []string{"", "a body"} {
				rec, err := AppendMessage(nil, 5, a, props, []byte(body))
				require.NoError(t, err, name)
				require.Len(t, rec, MessageBytes(a, props, []byte(body)))
				m, err := DecodeMessage(rec)
				require.NoError(t, err, name)
				require.True(t, m.HasAttributes())
				require.Equal(t, *a, m.Attributes(), name)
				requireRecordAttributes(t, rec, a)
				require.Equal(t, len(props), m.PropertyCount())
				require.Equal(t, body, string(m.Body))
				for cut := range len(rec) {
					_, err := DecodeMessage(rec[:cut])
					require.ErrorIs(t, err, ErrMalformed, "%s cut to %d bytes", name, cut)
				}
			}
		}
	}
}

// requireRecordAttributes verifies the attribute lookups in the encoded record.
func requireRecordAttributes(t *testing.T, rec []byte, a *Attributes) {
	t.Helper()
	require.Equal(t, a.ExpiresAtMS, RecordTime(rec, AttributeExpiresAt))
	require.Equal(t, a.DeliverAtMS, RecordTime(rec, AttributeDeliverAt))
	require.Equal(t, a.Group, string(RecordAttribute(rec, AttributeGroup)))
	require.Equal(t, a.Subject, string(RecordAttribute(rec, AttributeSubject)))
	require.EqualValues(t, 5, RecordPublishedMS(rec))
	priority := uint8(DefaultPriority)
	if a.Priority != nil {
		priority = *a.Priority
	}
	require.Equal(t, priority, RecordPriority(rec))
}

// A message without attributes has the same encoding as in releases without attributes.
func TestMessageWithoutAttributes(t *testing.T) {
	plain, err := AppendMessage(nil, 5, nil, []Property{{"a", "1"}}, []byte("body"))
	require.NoError(t, err)
	empty, err := AppendMessage(nil, 5, &Attributes{}, []Property{{"a", "1"}}, []byte("body"))
	require.NoError(t, err)
	require.Equal(t, plain, empty)
	m, err := DecodeMessage(plain)
	require.NoError(t, err)
	require.False(t, m.HasAttributes())
	require.Equal(t, Attributes{}, m.Attributes())
}

// Attributes above a limit or with an invalid value are rejected. The error names the attribute.
func TestAttributeLimits(t *testing.T) {
	value := Value{Kind: ValueBool}
	for name, tt := range map[string]struct {
		a     Attributes
		props []Property
		want  error
		text  string // part of the error
	}{
		"text": {
			Attributes{CorrelationID: strings.Repeat("c", MaxAttributeBytes+1)},
			nil, ErrTooLarge,
			"correlation_id has",
		},
		"values": {
			Attributes{Values: []TypedProperty{{"k", Value{Kind: ValueBytes, Bytes: make([]byte, MaxAttributesBytes)}}}},
			nil, ErrTooLarge, "typed properties",
		},
		"priority":   {Attributes{Priority: new(uint8(10))}, nil, ErrInvalidMessage, "priority 10"},
		"expires":    {Attributes{ExpiresAtMS: -1}, nil, ErrInvalidMessage, "expires_at is -1"},
		"deliver at": {Attributes{DeliverAtMS: MaxTimeMS + 1}, nil, ErrInvalidMessage, "deliver_at is 253402300800000"},
		"no key":     {Attributes{Values: []TypedProperty{{"", value}}}, nil, ErrInvalidName, "property key"},
		"long key":   {Attributes{Values: []TypedProperty{{strings.Repeat("k", 256), value}}}, nil, ErrInvalidName, "256"},
		"no kind":    {Attributes{Values: []TypedProperty{{"k", Value{}}}}, nil, ErrInvalidMessage, `"k"`},
		"bool of 2":  {Attributes{Values: []TypedProperty{{"k", Value{ValueBool, 2, nil}}}}, nil, ErrInvalidMessage, `"k"`},
		"twice": {
			Attributes{Values: []TypedProperty{{"k", value}, {"k", value}}}, nil, ErrInvalidMessage, "duplicate",
		},
		"out of order": {Attributes{Values: []TypedProperty{{"k", value}, {"a", value}}}, nil, ErrInvalidMessage, "order"},
		"text and value": {
			Attributes{Values: []TypedProperty{{"k", value}}},
			[]Property{{"k", "v"}},
			ErrInvalidMessage,
			`"k"`,
		},
	} {
		before := []byte("before")
		got, err := AppendMessage(before, 0, &tt.a, tt.props, nil)
		require.ErrorIs(t, err, tt.want, name)
		require.Contains(t, err.Error(), tt.text, name)
		require.Equal(t, before, got)
	}
}

// Bytes that this version does not write are rejected, as malformed or as a newer version.
func TestInvalidAttributes(t *testing.T) {
	for name, tt := range map[string]struct {
		block []byte
		want  error
	}{
		"an attribute of a later version": {[]byte{13, 1, 'x'}, ErrNewerVersion},
		"a value of a later type":         {[]byte{14, 4, 1, 1, 'k', 9}, ErrNewerVersion},
		"a priority of 10":                {[]byte{9, 1, 10}, ErrMalformed},
		"a priority of two bytes":         {[]byte{9, 2, 1, 1}, ErrMalformed},
		"a time of 0":                     {[]byte{10, 1, 0}, ErrMalformed},
		"a truncated time":                {[]byte{12, 1, 0x80}, ErrMalformed},
		"a tag below the first":           {[]byte{2, 1, 'x'}, ErrNewerVersion},
		"twice":                           {[]byte{3, 1, 'x', 3, 1, 'y'}, ErrMalformed},
		"out of order":                    {[]byte{4, 1, 'x', 3, 1, 'y'}, ErrMalformed},
		"empty text":                      {[]byte{3, 0}, ErrMalformed},
		"longer than the block":           {[]byte{3, 2, 'x'}, ErrMalformed},
		"no values":                       {[]byte{14, 1, 0}, ErrMalformed},
		"bytes after the values":          {[]byte{14, 6, 1, 1, 'k', 1, 0, 0}, ErrMalformed},
		"values out of order":             {[]byte{14, 9, 2, 1, 'k', 1, 0, 1, 'a', 1, 0}, ErrMalformed},
		"a bool of 7":                     {[]byte{14, 5, 1, 1, 'k', 1, 7}, ErrMalformed},
		"a truncated int64":               {[]byte{14, 5, 1, 1, 'k', 2, 7}, ErrMalformed},
		"a block without any attribute":   {nil, ErrMalformed},
		"a text above its limit":          {append([]byte{3, 0x81, 8}, make([]byte, 1025)...), ErrMalformed},
		"a dead letter without an origin": {append([]byte{15, 14, 1}, make([]byte, 13)...), ErrMalformed},
		"a truncated dead letter":         {[]byte{15, 1, 1}, ErrMalformed},
		"values with an empty last key":   {[]byte{14, 5, 1, 0, 1, 0, 0}, ErrMalformed},
	} {
		rec := []byte{0, 0, 0, 0, flagAttributes, 0, 0, 0, 0, 0, 0, 0, 0}
		rec = append(binary.AppendUvarint(rec, uint64(len(tt.block))), tt.block...)
		size := len(rec) - sizeFieldBytes
		rec[0], rec[1] = byte(size), byte(size>>8)
		_, err := DecodeMessage(rec)
		require.ErrorIs(t, err, tt.want, name)
	}
}

// Relabel keeps the content of a moved message and adds its last origin, also to a message with the maximum attributes.
// Moving it back restores the message without its times.
func TestRelabelMovedMessage(t *testing.T) {
	for _, a := range []*Attributes{nil, {Subject: "s"}, everyAttribute()} {
		rec, err := AppendMessage(nil, 5, a, []Property{{"a", "1"}}, []byte("body"))
		require.NoError(t, err)
		l := &DeadLetter{Queue: "q", Subscription: "s", Sequence: 9, Reason: DeadMaxDeliveries, MovedMS: 77}
		moved, err := Relabel(rec, l)
		require.NoError(t, err)
		m, err := DecodeMessage(moved)
		require.NoError(t, err)
		require.Equal(t, l, m.DeadLetter())
		require.Equal(t, "body", string(m.Body))
		require.Equal(t, int64(77), RecordSinceMS(moved))
		if a != nil {
			a.DeadLetter = nil
			a.ExpiresAtMS, a.DeliverAtMS = 0, 0 // a dead letter has no times
		}
		before, err := AppendMessage(nil, 5, a, []Property{{"a", "1"}}, []byte("body"))
		require.NoError(t, err)
		back, err := Relabel(moved, nil)
		require.NoError(t, err)
		require.Equal(t, before, back)
	}
	full := &Attributes{Values: []TypedProperty{
		{"k", Value{Kind: ValueBytes, Bytes: make([]byte, MaxAttributesBytes-16)}},
	}}
	rec, err := AppendMessage(nil, 5, full, nil, nil)
	require.NoError(t, err)
	long := strings.Repeat("q", MaxNameBytes)
	moved, err := Relabel(rec, &DeadLetter{Queue: long, Subscription: long, Sequence: math.MaxUint64, Reason: 1})
	require.NoError(t, err)
	_, err = DecodeMessage(moved)
	require.NoError(t, err)
}

// Decoding a message with attributes does not allocate.
func TestDecodingAttributesDoesNotAllocate(t *testing.T) {
	rec, err := AppendMessage(nil, 5, everyAttribute(), []Property{{"a", "1"}}, []byte("body"))
	require.NoError(t, err)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		m, err := DecodeMessage(rec)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, text := range m.Texts {
			n += len(text)
		}
		for key := range m.Values {
			n += len(key)
		}
		if n == 0 {
			t.Fatal("no attributes")
		}
	}))
}
