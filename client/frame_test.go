// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/proto/codec"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// randomMessages returns n messages. If plain is set, they have only a body; otherwise they have random fields.
func randomMessages(rng *rand.Rand, n int, plain bool) []Message {
	ms := make([]Message, n)
	for i := range ms {
		m := &ms[i]
		if rng.IntN(5) > 0 {
			m.Body = make([]byte, rng.IntN(300))
		}
		if plain {
			continue
		}
		if rng.IntN(2) == 0 {
			m.Properties = map[string]string{"k": "v"}
		}
		if rng.IntN(2) == 0 {
			m.Group, m.Priority = "g", new(uint8(0))
		}
		if rng.IntN(2) == 0 {
			m.TTL, m.DeliverAt = time.Second, time.UnixMilli(1_700_000_000_000)
		}
		if rng.IntN(2) == 0 {
			m.MessageID, m.Values = "id", map[string]any{"n": int64(1)}
		}
	}
	return ms
}

// The encoding of a frame is identical to the protobuf encoding of its requests.
func TestFrameEncoding(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var b frame
		var want *pb.PublishStreamRequest
		for i := range 1 + rng.IntN(4) {
			p := part{
				queue: "q", id: strings.Repeat("i", 1+rng.IntN(64)), epoch: rng.Uint32N(3), sequence: 1 + rng.Uint64N(1000),
				retry: rng.IntN(2) == 0, resumes: rng.IntN(2) == 0,
			}
			r := &pb.PublishStreamRequest{
				Correlation: p.sequence, AcceptsMore: true, Resumes: p.resumes, Publish: &pb.PublishRequest{
					Queue: p.queue, Producer: &pb.Producer{Id: p.id, Epoch: p.epoch, Sequence: p.sequence, Retry: p.retry},
				},
			}
			for range 1 + rng.IntN(3) {
				ms := randomMessages(rng, 1+rng.IntN(3), rng.IntN(3) > 0)
				e, err := newEntry("q", ms, 1<<20)
				require.NoError(t, err)
				require.Equal(t, len(ms), int(e.count))
				p.entries = append(p.entries, e)
				r.Publish.Messages = append(r.Publish.Messages, messagesToProto(ms)...)
			}
			r.Publish.Splits = len(p.entries) > 1
			b.parts = append(b.parts, p)
			if i == 0 {
				want = r
			} else {
				want.More = append(want.More, r)
			}
		}
		data, err := codec.New().Marshal(&b)
		require.NoError(t, err)
		var got pb.PublishStreamRequest
		require.NoError(t, proto.Unmarshal(data.Materialize(), &got))
		require.True(t, proto.Equal(want, &got), "seed %d:\n%v\n%v", seed, want, &got)
		require.Equal(t, proto.Size(want), data.Len())
		require.True(t, proto.Equal(want, &b), "ProtoReflect")
	}
}

// A message with any field in addition to its body is not plain, so that all fields are sent.
func TestPlainMessage(t *testing.T) {
	require.True(t, (&Message{Body: []byte("b")}).plain())
	for i, m := range []Message{
		{Properties: map[string]string{"k": "v"}},
		{Values: map[string]any{"k": true}},
		{MessageID: "x"},
		{CorrelationID: "x"},
		{ReplyTo: "x"},
		{ContentType: "x"},
		{Subject: "x"},
		{Group: "x"},
		{Priority: new(uint8(0))},
		{TTL: 1},
		{Delay: 1},
		{Delay: -1},
		{TTL: -1},
		{ExpiresAt: time.UnixMilli(1)},
		{DeliverAt: time.UnixMilli(1)},
	} {
		require.False(t, m.plain(), i)
		require.NotEqual(t, fmt.Sprint(&Message{}), fmt.Sprint(&m), "not covered")
	}
}
