// SPDX-License-Identifier: Apache-2.0

package client

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// All fields of a message survive the conversion; an int is delivered as an int64.
func TestMessageFields(t *testing.T) {
	m := Message{
		Body: []byte("{}"), Properties: map[string]string{"k": "v"}, MessageID: "m-1", CorrelationID: "c-1",
		ReplyTo: "answers", ContentType: "application/json", Subject: "order", Group: "g", Priority: new(uint8(0)),
		ExpiresAt: time.UnixMilli(1).UTC(), DeliverAt: time.UnixMilli(1_800_000_000_000).UTC(),
		Values: map[string]any{"int": 7, "long": int64(-1), "paid": true, "rate": 0.5, "blob": []byte{0, 255}},
	}
	require.NoError(t, m.check(100))
	got := storedFromProto(&pb.StoredMessage{Message: messagesToProto([]Message{m})[0]}).Message
	m.Values["int"] = int64(7)
	require.Equal(t, m, got)
	got = storedFromProto(&pb.StoredMessage{Message: messagesToProto([]Message{{}})[0]}).Message
	require.Equal(t, Message{}, got)
	require.Greater(t, m.cost(), int64(len(m.Body)+128))
}

// Invalid messages are rejected before they are sent.
func TestMessageFieldLimits(t *testing.T) {
	long := strings.Repeat("x", 1025)
	for text, m := range map[string]Message{
		"MessageID has":            {MessageID: long},
		"CorrelationID has":        {CorrelationID: long},
		"ReplyTo has":              {ReplyTo: long},
		"ContentType has":          {ContentType: long},
		"Subject has":              {Subject: long},
		"Subject is":               {Subject: "\xff"},
		"Group has":                {Group: long},
		"Priority is 10":           {Priority: new(uint8(10))},
		"TTL is -1s":               {TTL: -time.Second},
		"TTL is 1ns":               {TTL: 1},
		"Delay is -1ns":            {Delay: -1},
		"Delay is 2562047h47m16.8": {Delay: math.MaxInt64},
		"ExpiresAt or TTL":         {ExpiresAt: time.Unix(1, 0), TTL: time.Second},
		"DeliverAt or Delay":       {DeliverAt: time.Unix(1, 0), Delay: time.Second},
		"time 1970-01-01":          {ExpiresAt: time.Unix(0, 0).UTC()},
		"time 10000-01-01":         {DeliverAt: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)},
		"of Values":                {Values: map[string]any{"": true}},
		`"k" is a`:                 {Values: map[string]any{"k": "v"}},
		`"k" has type uint8`:       {Values: map[string]any{"k": uint8(1)}},
		`"k" is in Properties`:     {Values: map[string]any{"k": true}, Properties: map[string]string{"k": "v"}},
		"values have 65548":        {Values: map[string]any{"k": make([]byte, 64<<10), "b": 1}},
	} {
		err := m.check(100)
		require.Error(t, err, text)
		require.Contains(t, err.Error(), text)
		if strings.HasSuffix(text, " has") || strings.Contains(text, "values have") {
			require.ErrorIs(t, err, ErrLimit, text)
		} else {
			require.ErrorIs(t, err, ErrInvalid, text)
		}
	}
}

// The client accepts exactly the properties that a node accepts.
func TestPropertiesLimit(t *testing.T) {
	for _, others := range []int{0, 1, 200} {
		used := others * len("xxxother00")
		for size := txn.MaxPropertiesBytes - used - 20; size <= txn.MaxPropertiesBytes-used+others; size++ {
			m := Message{Properties: map[string]string{"key": strings.Repeat("x", size)}}
			stored := []txn.Property{{Key: "key", Value: m.Properties["key"]}}
			for i := range others {
				key := strconv.Itoa(i)
				m.Properties[key] = "other"
				stored = append(stored, txn.Property{Key: key, Value: "other"})
			}
			err := txn.CheckMessage(nil, stored, nil)
			require.Equal(t, err == nil, m.check(100) == nil, "%d properties, one of %d bytes: %v", others+1, size, err)
		}
	}
}

// Durations are sent unchanged; unset durations are not sent.
func TestDurations(t *testing.T) {
	sent := messagesToProto([]Message{{TTL: time.Hour, Delay: time.Millisecond}, {}})
	require.Equal(t, time.Hour, sent[0].GetTtl().AsDuration())
	require.Equal(t, time.Millisecond, sent[0].GetDelay().AsDuration())
	require.Nil(t, sent[1].GetTtl())
	require.Nil(t, sent[1].GetDelay())
}
