// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// randomPublish returns a request with up to three nested requests. If allFields is set, some messages have fields that
// the library decodes.
func randomPublish(rng *rand.Rand, allFields bool) *pb.PublishStreamRequest {
	one := func(most int) *pb.PublishStreamRequest {
		r := &pb.PublishStreamRequest{Correlation: rng.Uint64(), AcceptsMore: rng.IntN(2) == 0, Resumes: rng.IntN(2) == 0}
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
		if allFields && r.GetPublish().GetMessages() != nil {
			(&filler{rng: rng, unknownAt: -1}).fill(r.Publish.Messages[0].ProtoReflect(), 2)
		}
		return r
	}
	r := one(200)
	for range rng.IntN(4) {
		r.More = append(r.More, one(200))
	}
	return r
}

// Successive requests reuse memory, and contain no data of earlier requests. Producers stay valid after Reset.
func TestReceivedRequests(t *testing.T) {
	c := New()
	streams := make([]ReceivedPublish, 3)
	type kept struct {
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
		require.True(t, proto.Equal(want, r), "seed %d: as a message", seed)
		all = append(all, kept{r.Request.GetPublish().GetProducer(), want.GetPublish().GetProducer()})
	}
	for _, k := range all {
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

// poisonPool overwrites freed buffers, and counts buffers in use.
type poisonPool struct{ inUse int }

func (p *poisonPool) Get(n int) *[]byte {
	p.inUse++
	b := make([]byte, n)
	return &b
}

func (p *poisonPool) Put(b *[]byte) {
	p.inUse--
	for i := range *b {
		(*b)[i] = 0xdb
	}
}

// Bodies refer to the received buffers and stay valid until Reset, although gRPC frees its buffers after decoding.
// Reset frees all buffers.
func TestReceivedRequestKeepsBuffers(t *testing.T) {
	var pool poisonPool
	var r ReceivedPublish
	c := New()
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 2))
		want := randomPublish(rng, false)
		for _, m := range want.GetPublish().GetMessages() {
			m.Body = bytes.Repeat([]byte{byte(seed)}, rng.IntN(20_000))
		}
		b, err := proto.Marshal(want)
		require.NoError(t, err)
		var data mem.BufferSlice
		for size := []int{len(b) + 1, 16_384, 1000}[seed%3]; len(b) > 0; {
			n := min(size, len(b))
			data, b = append(data, mem.Copy(b[:n], &pool)), b[n:]
		}
		require.NoError(t, c.Unmarshal(data, &r))
		data.Free()
		require.True(t, proto.Equal(want, &r.Request), "seed %d", seed)
		r.Reset()
		require.Zero(t, pool.inUse, "seed %d", seed)
	}
}

// Data in a buffer without a reference count is copied, because the buffer may be reused after decoding.
func TestReceivedRequestCopiesUncountedBuffers(t *testing.T) {
	want := &pb.PublishStreamRequest{Publish: &pb.PublishRequest{
		Queue: "q", Messages: []*pb.Message{{Body: bytes.Repeat([]byte{7}, 15_000)}},
	}}
	b, err := proto.Marshal(want)
	require.NoError(t, err)
	var r ReceivedPublish
	require.NoError(t, New().Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &r))
	clear(b)
	require.True(t, proto.Equal(want, &r.Request))
}
