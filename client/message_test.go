// SPDX-License-Identifier: Apache-2.0

package client

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// TestMessageFields: what a message has is what is delivered; an int is delivered as an int64.
func TestMessageFields(t *testing.T) {
	m := Message{
		Body: []byte("{}"), Properties: map[string]string{"k": "v"}, MessageID: "m-1", CorrelationID: "c-1",
		ReplyTo: "answers", ContentType: "application/json", Subject: "order",
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

// TestMessageFieldLimits: what no node would take is refused before it is sent.
func TestMessageFieldLimits(t *testing.T) {
	long := strings.Repeat("x", 1025)
	for says, m := range map[string]Message{
		"MessageID has 1025 bytes":        {MessageID: long},
		"CorrelationID has 1025 bytes":    {CorrelationID: long},
		"ReplyTo has 1025 bytes":          {ReplyTo: long},
		"ContentType has 1025 bytes":      {ContentType: long},
		"Subject has 1025 bytes":          {Subject: long},
		"Subject is not valid UTF-8":      {Subject: "\xff"},
		"a key of Values has 1 to 255":    {Values: map[string]any{"": true}},
		`"k" is a text, which belongs`:    {Values: map[string]any{"k": "v"}},
		`"k" is a uint8; bool, int64`:     {Values: map[string]any{"k": uint8(1)}},
		`"k" is in Properties and`:        {Values: map[string]any{"k": true}, Properties: map[string]string{"k": "v"}},
		"fields and values have 65548 by": {Values: map[string]any{"k": make([]byte, 64<<10), "b": 1}},
	} {
		err := m.check(100)
		require.ErrorContains(t, err, says)
		if strings.Contains(says, "bytes") || strings.Contains(says, "values have") {
			require.ErrorIs(t, err, ErrLimit, says)
		} else {
			require.ErrorIs(t, err, ErrInvalid, says)
		}
	}
}
