// SPDX-License-Identifier: Apache-2.0

package codec

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"
	protobuf "google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// maxReceived is the maximum message size in these tests.
const maxReceived = 1 << 20

// wire receives frames like gRPC: in memory of the pool, unless they are small.
type wire struct{ pool mem.BufferPool }

func (w wire) frame(b []byte) mem.Buffer {
	if mem.IsBelowBufferPoolingThreshold(len(b)) {
		return mem.SliceBuffer(bytes.Clone(b))
	}
	into := w.pool.Get(len(b))
	copy(*into, b)
	return mem.NewBuffer(into, w.pool)
}

// withHeader prepends the gRPC header to a message.
func withHeader(b []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(b))), b...)
}

// strip removes the gRPC header from the first frame, which contains all of it.
func strip(first mem.Buffer) mem.Buffer {
	_, rest := mem.ReadUnsafe(make([]byte, prefixBytes), first)
	return rest
}

// message receives a message in frames of a given size.
func (w wire) message(b []byte, frame int) mem.BufferSlice {
	var data mem.BufferSlice
	for b = withHeader(b); len(b) > 0; {
		n := min(frame, len(b))
		data, b = append(data, w.frame(b[:n])), b[n:]
	}
	data[0] = strip(data[0])
	return data
}

// newPlacesCodec returns a codec that receives messages in places.
func newPlacesCodec() (codec, wire) {
	c := newCodec()
	c.places = newPlaces(maxReceived)
	return c, wire{c.places}
}

// overwriteFreed enables overwriting of freed buffers until the test ends.
func overwriteFreed(t testing.TB) {
	poisoned = true
	t.Cleanup(func() { poisoned = false })
}

// countCopies counts the copied bytes until the test ends.
func countCopies(t testing.TB) *int {
	n := new(int)
	CountCopies(func(bytes int) { *n += bytes })
	t.Cleanup(func() { copied = nil })
	return n
}

// patterned returns bytes that depend on their position.
func patterned(size int, seed byte) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*3 ^ byte(i>>16)*5 ^ seed
	}
	return b
}

// bulk returns messages with a large bytes field.
func bulk(size int, seed byte) []protobuf.Message {
	return []protobuf.Message{
		&pb.ReplicateResponse{Term: 3, Records: patterned(size, seed)},
		&pb.FetchSnapshotResponse{Offset: 7, Data: patterned(size, seed)},
	}
}

// Only the first of several frames of a message is copied. The message stays valid after gRPC has freed its buffers and
// received other messages.
func TestReceivedInPlace(t *testing.T) {
	overwriteFreed(t)
	n := countCopies(t)
	c, w := newPlacesCodec()
	var want, got []protobuf.Message
	for i, s := range []struct{ size, maxCopied int }{
		{1100, 0},
		{5000, 0},
		{15_000, 0},
		{16_300, 0},
		{maxFrame - prefixBytes - 5, maxFrame}, // a full frame, with reused memory
		{20_000, maxFrame},
		{32_000, maxFrame},
		{33_000, maxFrame + 1024}, // gRPC requests no memory for frames below 1024 bytes
		{60_000, maxFrame},
		{500_000, maxFrame},
		{15_000, 0},
		{1_000_000, maxFrame + 1024},
		{300, 400},
	} {
		for _, m := range bulk(s.size, byte(i)) {
			b, err := protobuf.Marshal(m)
			require.NoError(t, err)
			*n = 0
			data, into := w.message(b, maxFrame), m.ProtoReflect().New().Interface()
			require.NoError(t, c.Unmarshal(data, into))
			data.Free()
			require.LessOrEqual(t, *n, s.maxCopied, "%d bytes", s.size)
			if _, once := into.(*pb.FetchSnapshotResponse); once {
				into = protobuf.Clone(into) // its data is valid until the next message
			}
			want, got = append(want, m), append(got, into)
		}
	}
	for i := range want {
		require.True(t, protobuf.Equal(want[i], got[i]))
	}
	require.Empty(t, c.places.placed)
}

// The memory of snapshot data is reused for later messages, but not before the next message is decoded, and also if
// several messages were received ahead.
func TestSnapshotMemoryIsReused(t *testing.T) {
	overwriteFreed(t)
	c, w := newPlacesCodec()
	const ahead = 3
	var waiting []mem.BufferSlice
	used := make(map[*byte]bool)
	for i := range 100 {
		m := &pb.FetchSnapshotResponse{Data: bytes.Repeat([]byte{byte(i)}, 500_000+100*(i%3))}
		b, err := protobuf.Marshal(m)
		require.NoError(t, err)
		waiting = append(waiting, w.message(b, maxFrame))
		if len(waiting) <= ahead {
			continue
		}
		var got pb.FetchSnapshotResponse
		require.NoError(t, c.Unmarshal(waiting[0], &got))
		waiting[0].Free()
		waiting = waiting[1:]
		want := &pb.FetchSnapshotResponse{Data: bytes.Repeat([]byte{byte(i - ahead)}, 500_000+100*((i-ahead)%3))}
		require.True(t, protobuf.Equal(want, &got), "message %d", i-ahead)
		used[&got.Data[0]] = true
	}
	require.Less(t, len(used), 20)
	require.LessOrEqual(t, len(c.places.free), maxFree)
}

// If several messages arrive before the first is decoded, each of them is received in its place.
func TestReceivedBeforeDecoding(t *testing.T) {
	overwriteFreed(t)
	n := countCopies(t)
	c, w := newPlacesCodec()
	const ahead = 15
	var all []mem.BufferSlice
	var want []protobuf.Message
	for i := range ahead {
		m := bulk(60_000+1000*i, byte(i))[0]
		b, err := protobuf.Marshal(m)
		require.NoError(t, err)
		want, all = append(want, m), append(all, w.message(b, maxFrame))
	}
	got := make([]pb.ReplicateResponse, ahead)
	for i, data := range all {
		require.NoError(t, c.Unmarshal(data, &got[i]))
		data.Free()
	}
	for i := range got {
		require.True(t, protobuf.Equal(want[i], &got[i]))
	}
	require.LessOrEqual(t, *n, ahead*(maxFrame+1024))
}

// A message is decoded correctly although its last frames were received in the place of another message.
func TestPlaceOfOtherMessage(t *testing.T) {
	overwriteFreed(t)
	c, w := newPlacesCodec()
	const rest = 30_000
	other := w.frame(withHeader(make([]byte, maxFrame-prefixBytes+rest))[:maxFrame])
	want := bulk(5000+rest, 1)[0]
	b, err := protobuf.Marshal(want)
	require.NoError(t, err)
	at := len(b) - rest
	data := mem.BufferSlice{mem.SliceBuffer(b[:at]), w.frame(b[at : at+maxFrame]), w.frame(b[at+maxFrame:])}
	var got pb.ReplicateResponse
	n := countCopies(t)
	require.NoError(t, c.Unmarshal(data, &got))
	require.Equal(t, len(b), *n)
	data.Free()
	other.Free()
	require.True(t, protobuf.Equal(want, &got))
}

// Messages that are never decoded retain a bounded amount of memory. Messages above the maximum size have no place.
func TestPlacesOfUndecodedMessages(t *testing.T) {
	c, w := newPlacesCodec()
	b, err := protobuf.Marshal(bulk(400_000, 1)[0])
	require.NoError(t, err)
	for range 50 {
		w.message(b, maxFrame).Free()
		require.LessOrEqual(t, c.places.placedBytes, 2*maxReceived)
	}
	data := w.message(b, maxFrame)
	require.NoError(t, c.Unmarshal(data, &pb.ReplicateResponse{}))
	data.Free()
	require.Zero(t, c.places.placedBytes)

	tooMuch := binary.BigEndian.AppendUint32([]byte{0}, maxReceived+1)
	w.frame(append(tooMuch, make([]byte, 5000)...)).Free()
	w.frame(append(tooMuch, make([]byte, maxFrame-prefixBytes)...))
	w.frame(make([]byte, maxFrame))
	require.Empty(t, c.places.placed)
}

// Receiving and decoding a message needs at most two allocations.
func TestPlacesAllocations(t *testing.T) {
	c, w := newPlacesCodec()
	header := make([]byte, prefixBytes)
	for _, size := range []int{15_000, 60_000} {
		b, err := protobuf.Marshal(&pb.ReplicateResponse{Records: make([]byte, size)})
		require.NoError(t, err)
		var into pb.ReplicateResponse
		framed := withHeader(b)
		data := make(mem.BufferSlice, 0, 4)
		least := math.Inf(1)
		for range 3000 { // a sync.Pool drops entries at times, with -race at random
			least = min(least, testing.AllocsPerRun(1, func() {
				data = data[:0]
				for rest := framed; len(rest) > 0; {
					n := min(maxFrame, len(rest))
					data, rest = append(data, w.frame(rest[:n])), rest[n:]
				}
				_, data[0] = mem.ReadUnsafe(header, data[0])
				require.NoError(t, c.Unmarshal(data, &into))
				data.Free()
			}))
			if least <= 2 {
				break
			}
		}
		require.LessOrEqual(t, least, 2.0, "%d bytes", size)
	}
}

// stream is a call of a connection: the remaining and the received frames of its current message, and the content.
type stream struct {
	rest []byte
	data mem.BufferSlice
	want []byte
}

// received is a message decoded by the codec, and by the protobuf library.
type received struct {
	message *pb.ReplicateResponse
	want    *pb.ReplicateResponse
}

// receiveInterleaved receives frames of one or two streams in random order, usually split as gRPC splits them. Some
// messages consist of extra, or end with it. Each decoded message must equal the result of the protobuf library, and
// must stay unchanged until the end.
func receiveInterleaved(t *testing.T, rng *rand.Rand, frames int, extra []byte) {
	c, w := newPlacesCodec()
	calls := make([]stream, 1+rng.IntN(2))
	var all []received
	begin := func(s *stream) {
		size := []int{300, 5000, 16_379, 20_000, 40_000, 150_000}[rng.IntN(6)]
		b, err := protobuf.Marshal(&pb.ReplicateResponse{Term: 9, Records: patterned(rng.IntN(size)+1, byte(len(all)))})
		require.NoError(t, err)
		switch rng.IntN(10) {
		case 0:
			b = bytes.Clone(extra)
		case 1:
			b = append(b, extra...)
		}
		s.data, s.want, s.rest = nil, b, withHeader(b)
		if rng.IntN(20) == 0 {
			s.rest[rng.IntN(prefixBytes)]++ // a wrong header
		}
	}
	decode := func(s *stream) {
		s.data[0] = strip(s.data[0])
		if s.data[0] == nil {
			s.data = s.data[1:]
		}
		var r received
		r.message, r.want = &pb.ReplicateResponse{}, &pb.ReplicateResponse{}
		err := c.Unmarshal(s.data, r.message)
		libraryErr := encoding.GetCodecV2(proto.Name).Unmarshal(mem.BufferSlice{mem.SliceBuffer(s.want)}, r.want)
		s.data.Free()
		s.data, s.rest = nil, nil
		require.Equal(t, libraryErr == nil, err == nil)
		if err == nil {
			dropUnknown(r.message)
			dropUnknown(r.want)
			all = append(all, r)
		}
	}
	irregular := rng.IntN(2) == 0
	for range frames {
		s := &calls[0]
		if irregular && rng.IntN(4) == 0 {
			s = &calls[rng.IntN(len(calls))]
		}
		if s.data == nil {
			begin(s)
		}
		n := min(maxFrame, len(s.rest))
		if irregular && rng.IntN(8) == 0 {
			n = min(n, max(prefixBytes, rng.IntN(n)))
		}
		s.data, s.rest = append(s.data, w.frame(s.rest[:n])), s.rest[n:]
		switch {
		case len(s.rest) == 0:
			decode(s)
		case irregular && rng.IntN(40) == 0: // the call has ended
			s.data.Free()
			s.data = nil
		}
	}
	for _, r := range all {
		require.True(t, protobuf.Equal(r.want, r.message))
	}
}

// For any order of streams and any split into frames, the messages are decoded correctly.
func TestReceivedInterleaved(t *testing.T) {
	overwriteFreed(t)
	for seed := range uint64(60) {
		receiveInterleaved(t, rand.New(rand.NewPCG(seed, 3)), 100, []byte{0x2a, 0xff})
	}
}

func FuzzReceivedInterleaved(f *testing.F) {
	overwriteFreed(f)
	for i, m := range examples() {
		b, err := protobuf.Marshal(m)
		require.NoError(f, err)
		f.Add(uint64(i), b)
	}
	f.Fuzz(func(t *testing.T, seed uint64, extra []byte) {
		receiveInterleaved(t, rand.New(rand.NewPCG(seed, 4)), 15, extra)
	})
}

// sender sends messages with log records.
type sender struct {
	pb.UnimplementedReplicationServiceServer

	messages []protobuf.Message
}

func (s sender) Replicate(out grpc.BidiStreamingServer[pb.ReplicateRequest, pb.ReplicateResponse]) error {
	for _, m := range s.messages {
		if err := out.SendMsg(m); err != nil {
			return err
		}
	}
	return nil
}

// gRPC splits messages and requests memory as places expects: only the first frame of a message is copied.
func TestReceivedInPlaceFromGRPC(t *testing.T) {
	overwriteFreed(t)
	var s sender
	most := 0
	for i := range 40 {
		size := []int{300, 5000, 15_000, 20_000, 100_000, 700_000}[i%6]
		s.messages = append(s.messages, bulk(size, byte(i))[0])
		if size > maxFrame {
			most += maxFrame + 1024 // data for which gRPC requests no memory
		} else if size < 1024 {
			most += 1024
		}
	}
	server := grpc.NewServer(MarkingServerOptions()...)
	pb.RegisterReplicationServiceServer(server, s)
	l := bufconn.Listen(1 << 20)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	const window = 64 << 20 // larger than all messages
	conn, err := grpc.NewClient("passthrough:///here", append(BulkDialOptions(window),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))...)
	require.NoError(t, err)
	n := countCopies(t)
	in, err := pb.NewReplicationServiceClient(conn).Replicate(t.Context())
	require.NoError(t, err)
	var got []*pb.ReplicateResponse
	for range s.messages {
		m, err := in.Recv()
		require.NoError(t, err)
		got = append(got, m)
	}
	require.LessOrEqual(t, *n, most)
	for i, m := range got {
		require.True(t, protobuf.Equal(s.messages[i], m))
	}
	require.NoError(t, conn.Close())
	server.Stop()
	require.NoError(t, <-ended)
}
