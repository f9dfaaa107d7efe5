// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Successive responses reuse memory, and contain no data of earlier responses. Message bodies stay valid after
// Reset.
func TestReceivedResponses(t *testing.T) {
	c := New()
	var r Received
	var kept, keptWant [][]byte
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		want := &pb.ConsumeResponse{Confirmed: rng.Uint64N(2), Attached: rng.IntN(2) == 0}
		n := rng.IntN(40)
		if seed%20 == 0 {
			n = maxReused + 1
		}
		for range n {
			m := &pb.StoredMessage{Sequence: rng.Uint64(), Message: &pb.Message{Body: []byte{byte(seed)}}}
			if seed%7 == 0 { // including messages decoded by the library
				(&filler{rng: rng, unknownAt: -1}).fill(m.ProtoReflect(), 2)
			} else if rng.IntN(3) == 0 {
				m.DeliveryCount, m.Message = 1, &pb.Message{Subject: "s", Properties: map[string]string{"k": "v"}}
			}
			want.Messages = append(want.Messages, m)
		}
		b, err := proto.Marshal(want)
		require.NoError(t, err)
		require.NoError(t, c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &r))
		require.True(t, proto.Equal(want, &r.Response), "seed %d", seed)
		require.True(t, proto.Equal(want, &r), "seed %d: as a message", seed)
		for i, m := range r.Response.GetMessages() {
			kept = append(kept, m.GetMessage().GetBody())
			keptWant = append(keptWant, want.GetMessages()[i].GetMessage().GetBody())
		}
		r.Reset()
		require.True(t, proto.Equal(&pb.ConsumeResponse{}, &r), "seed %d", seed)
		require.LessOrEqual(t, len(r.slab), maxReused)
	}
	require.Equal(t, keptWant, kept)
}
