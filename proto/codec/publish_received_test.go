// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// randomPublish makes a request with up to three others in it; strange: with fields that are left to the library.
func randomPublish(rng *rand.Rand, strange bool) *pb.PublishStreamRequest {
	one := func(most int) *pb.PublishStreamRequest {
		r := &pb.PublishStreamRequest{Correlation: rng.Uint64(), TakesMore: rng.IntN(2) == 0}
		if rng.IntN(10) == 0 {
			return r
		}
		r.Publish = &pb.PublishRequest{Queue: "q"}
		if rng.IntN(2) == 0 {
			r.Publish.Producer = &pb.Producer{Id: "p", Epoch: 1, Sequence: rng.Uint64()}
		}
		for range rng.IntN(most) {
			m := &pb.Message{Body: make([]byte, rng.IntN(9))}
			if rng.IntN(4) == 0 {
				m = &pb.Message{Subject: "s", Priority: new(uint32(3)), Properties: map[string]string{"k": "v"}}
			}
			r.Publish.Messages = append(r.Publish.Messages, m)
		}
		if strange && r.GetPublish().GetMessages() != nil {
			(&filler{rng: rng, strange: -1}).fill(r.Publish.Messages[0].ProtoReflect(), 2)
		}
		return r
	}
	r := one(200)
	for range rng.IntN(4) {
		r.More = append(r.More, one(200))
	}
	return r
}

// TestReceivedPublish: one request after another arrives in memory that others have used, and has nothing of them; what
// its messages refer to, and its producer, stay good.
func TestReceivedPublish(t *testing.T) {
	c := New()
	streams := make([]ReceivedPublish, 3) // two of them may hold memory at the same time
	type kept struct {
		body, wantBody         []byte
		producer, wantProducer *pb.Producer
	}
	var all []kept
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		want := randomPublish(rng, seed%9 == 0)
		b, err := proto.Marshal(want)
		require.NoError(t, err)
		r := &streams[rng.IntN(len(streams))]
		r.Reset()
		require.True(t, proto.Equal(&pb.PublishStreamRequest{}, r), "seed %d", seed)
		require.NoError(t, c.Unmarshal(pieces(b), r))
		require.True(t, proto.Equal(want, &r.Request), "seed %d", seed)
		require.True(t, proto.Equal(want, r), "seed %d: as an interceptor sees it", seed)
		for i, m := range r.Request.GetPublish().GetMessages() {
			all = append(all, kept{
				m.GetBody(), want.GetPublish().GetMessages()[i].GetBody(),
				r.Request.GetPublish().GetProducer(), want.GetPublish().GetProducer(),
			})
		}
	}
	for _, k := range all {
		require.Equal(t, string(k.wantBody), string(k.body))
		require.True(t, proto.Equal(k.wantProducer, k.producer))
	}
	marking := newCodec()
	marking.marks = true
	var r ReceivedPublish
	require.NoError(t, marking.Unmarshal(pieces([]byte{0x0a, 0xff, 0xff, 0xff}), &r))
	name, bad := Undecodable(&r)
	require.True(t, bad)
	require.Equal(t, (&pb.PublishStreamRequest{}).ProtoReflect().Descriptor().FullName(), name)
}
