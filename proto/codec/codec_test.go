// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// examples returns examples of each message type that has a custom decoder.
func examples() []protobuf.Message {
	publish := &pb.PublishRequest{
		Queue: "orders", Producer: &pb.Producer{Id: "me", Epoch: 7, Sequence: 1 << 40},
		Messages: []*pb.Message{
			{Body: []byte("one"), Properties: map[string]string{"a": "1", "": ""}}, {}, {Body: make([]byte, 3000)},
		},
	}
	return []protobuf.Message{
		publish, &pb.PublishRequest{Producer: &pb.Producer{Id: "me", Sequence: 1, Retry: true}}, &pb.PublishRequest{},
		&pb.PublishStreamRequest{}, &pb.PublishStreamRequest{Correlation: 9, Publish: publish},
		&pb.PublishStreamRequest{Publish: &pb.PublishRequest{Producer: &pb.Producer{}}},
		&pb.PublishStreamRequest{Correlation: 1, Publish: publish, AcceptsMore: true, More: []*pb.PublishStreamRequest{
			{Correlation: 2, Publish: publish}, {}, {Publish: &pb.PublishRequest{}}, {Correlation: 3, AcceptsMore: true},
		}},
		&pb.PublishStreamRequest{More: []*pb.PublishStreamRequest{{More: []*pb.PublishStreamRequest{{Correlation: 1}}}}},
		&pb.ConsumeResponse{}, &pb.ConsumeResponse{Attached: true},
		&pb.ConsumeResponse{Confirmed: 5, Messages: []*pb.StoredMessage{
			{
				Sequence: 3, PublishedAt: &timestamppb.Timestamp{Seconds: -1, Nanos: 5}, DeliveryCount: 2,
				Message: &pb.Message{Body: []byte("x"), Properties: map[string]string{"k": "v"}},
			}, {Message: &pb.Message{}}, {},
		}},
		&pb.ReplicateResponse{}, &pb.ReplicateResponse{
			Config: 1, Term: 2, Previous: &pb.Position{Term: 2, Lsn: 7, Chain: 9}, Records: make([]byte, 3000),
			Last: &pb.Position{Lsn: 8}, CommitLsn: 6,
			AckRequired: true,
		}, &pb.ReplicateResponse{Welcome: &pb.Welcome{Reason: "reason"}},
		&pb.FetchSnapshotResponse{Offset: 1 << 40, Data: make([]byte, 3000), Checksum: 77},
		&pb.FetchSnapshotResponse{Finished: true},
	}
}

// decodeBoth decodes bytes with the codec and with the protobuf library, and requires the same outcome.
func decodeBoth(t *testing.T, b []byte, empty protobuf.Message) {
	t.Helper()
	got, want := empty, protobuf.Clone(empty)
	err := New().Unmarshal(pieces(b), got)
	if libraryErr := encoding.GetCodecV2(proto.Name).Unmarshal(pieces(b), want); libraryErr != nil {
		require.Error(t, err)
		return
	}
	require.NoError(t, err)
	dropUnknown(want)
	dropUnknown(got)
	require.True(t, protobuf.Equal(want, got), "library: %v\ncodec: %v", want, got)
}

// pieces splits data into two buffers.
func pieces(b []byte) mem.BufferSlice {
	return mem.BufferSlice{mem.SliceBuffer(b[:len(b)/2]), mem.SliceBuffer(b[len(b)/2:])}
}

// dropUnknown removes unknown fields, which only the library preserves.
func dropUnknown(m protobuf.Message) {
	b, _ := protobuf.UnmarshalOptions{DiscardUnknown: true}, m
	raw, err := protobuf.Marshal(m)
	if err == nil {
		protobuf.Reset(m)
		_ = b.Unmarshal(raw, m)
	}
}

// The codec decodes valid, repeated and truncated messages like the protobuf library.
func TestSameAsProtobufLibrary(t *testing.T) {
	for i, m := range examples() {
		t.Run(fmt.Sprintf("%d %T", i, m), func(t *testing.T) {
			b, err := protobuf.Marshal(m)
			require.NoError(t, err)
			decodeBoth(t, b, m.ProtoReflect().New().Interface())
			// repeated fields, which the library merges
			decodeBoth(t, append(b[:len(b):len(b)], b...), m.ProtoReflect().New().Interface())
			for cut := range b[:min(len(b), 200)] {
				decodeBoth(t, b[:cut], m.ProtoReflect().New().Interface())
			}
		})
	}
	// invalid UTF-8
	decodeBoth(t, []byte{0x0a, 0x01, 0xff}, &pb.PublishRequest{})
	// a message without a custom decoder
	b, err := protobuf.Marshal(&pb.CreateQueueRequest{Name: "q"})
	require.NoError(t, err)
	decodeBoth(t, b, &pb.CreateQueueRequest{})
	out, err := New().Marshal(examples()[0])
	require.NoError(t, err)
	decodeBoth(t, out.Materialize(), &pb.PublishRequest{})
}

// A request with more messages than the server accepts does not allocate memory for all of them.
func TestTooManyMessages(t *testing.T) {
	b := make([]byte, 0, 200_000)
	for range 100_000 {
		b = append(b, 0x12, 0x00)
	}
	var m pb.PublishRequest
	require.NoError(t, New().Unmarshal(pieces(b), &m))
	require.Len(t, m.GetMessages(), maxMessages)
}

// Decoding messages with custom decoders needs few allocations.
func TestDecodingAllocations(t *testing.T) {
	request := &pb.PublishStreamRequest{Publish: &pb.PublishRequest{Queue: "q", Producer: &pb.Producer{Id: "me"}}}
	response := &pb.ConsumeResponse{}
	for range 100 {
		m := &pb.Message{Body: make([]byte, 512)}
		request.Publish.Messages = append(request.Publish.Messages, m)
		response.Messages = append(response.Messages,
			&pb.StoredMessage{Message: m, PublishedAt: &timestamppb.Timestamp{Seconds: 1}})
	}
	for _, m := range []protobuf.Message{request, response} {
		b, err := protobuf.Marshal(m)
		require.NoError(t, err)
		data, into := pieces(b), m.ProtoReflect().New().Interface()
		c := New()
		allocs := testing.AllocsPerRun(100, func() {
			protobuf.Reset(into)
			require.NoError(t, c.Unmarshal(data, into))
		})
		require.Less(t, allocs, 30.0, "%T with 100 messages", m)
	}
	// With reused memory, only the buffer of the bodies is allocated.
	var publish ReceivedPublish
	var deliveries Received
	for m, into := range map[protobuf.Message]interface{ Reset() }{request: &publish, response: &deliveries} {
		b, err := protobuf.Marshal(m)
		require.NoError(t, err)
		data, c := pieces(b), New()
		require.NoError(t, c.Unmarshal(data, into))
		allocs := testing.AllocsPerRun(100, func() {
			into.Reset()
			require.NoError(t, c.Unmarshal(data, into))
		})
		require.Less(t, allocs, 12.0, "%T with 100 messages", into)
	}
}

func FuzzUnmarshal(f *testing.F) {
	for i, m := range examples() {
		b, err := protobuf.Marshal(m)
		require.NoError(f, err)
		f.Add(b, uint8(i))
	}
	f.Fuzz(func(t *testing.T, b []byte, which uint8) {
		all := examples()
		decodeBoth(t, b, all[int(which)%len(all)].ProtoReflect().New().Interface())
	})
}

// A marking codec returns no errors, and reports the messages it could not decode.
func TestMarkingCodec(t *testing.T) {
	c := newCodec()
	c.marks = true
	for _, m := range examples() {
		into := m.ProtoReflect().New().Interface()
		require.NoError(t, c.Unmarshal(pieces([]byte{0x0a, 0xff, 0xff, 0xff}), into))
		name, bad := Undecodable(into)
		require.True(t, bad)
		require.Equal(t, m.ProtoReflect().Descriptor().FullName(), name)
		b, err := protobuf.Marshal(m)
		require.NoError(t, err)
		into = m.ProtoReflect().New().Interface()
		require.NoError(t, c.Unmarshal(pieces(b), into))
		_, bad = Undecodable(into)
		require.False(t, bad)
		require.Zero(t, testing.AllocsPerRun(10, func() { Undecodable(into) }))
	}
	require.Len(t, mark(), markBytes)
	_, bad := Undecodable("not a message")
	require.False(t, bad)
}
