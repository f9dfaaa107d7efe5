// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
)

// garbage is a codec that encodes each message as invalid protobuf.
type garbage struct{ encoding.CodecV2 }

func (garbage) Marshal(any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer([]byte{0x0a, 0xff, 0xff, 0xff})}, nil
}

// A request that cannot be decoded fails with a client error, both in a unary call and in a stream.
func TestUndecodableRequest(t *testing.T) { simulated(t, testUndecodableRequest) }

func testUndecodableRequest(t *testing.T) {
	n := startAlone(t, nil)
	send := grpc.ForceCodecV2(garbage{encoding.GetCodecV2(proto.Name)})
	_, unary := n.queues.Publish(t.Context(), &pb.PublishRequest{}, send)
	_, status0 := n.admin.GetStatus(t.Context(), &pb.GetStatusRequest{}, send)
	publish, err := n.queues.PublishStream(t.Context(), send)
	require.NoError(t, err)
	require.NoError(t, publish.Send(&pb.PublishStreamRequest{}))
	_, published := publish.Recv()
	consume, err := n.queues.Consume(t.Context(), send)
	require.NoError(t, err)
	require.NoError(t, consume.Send(&pb.ConsumeRequest{}))
	_, consumed := consume.Recv()
	browse, err := n.queues.Browse(t.Context(), &pb.BrowseRequest{}, send)
	require.NoError(t, err)
	_, browsed := browse.Recv()
	for _, err := range []error{unary, status0, published, consumed, browsed} {
		require.Equal(t, codes.InvalidArgument, status.Code(err), "%v", err)
	}
}

// Like Consume, Browse splits responses at the client's receive limit. If a single message exceeds the limit, the
// call fails with an error that contains its sequence. The headers of that message can still be read.
func TestBrowseLimit(t *testing.T) { simulated(t, testBrowseLimit) }

func testBrowseLimit(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	n.publish("q", slices.Repeat([]string{string(bytes.Repeat([]byte("x"), 9<<10))}, 100)...)
	n.publish("q", string(bytes.Repeat([]byte("x"), 3<<20)))
	browse := func(headersOnly bool, limit uint32, receive int) (messages int, err error) {
		stream, err := n.queues.Browse(t.Context(), &pb.BrowseRequest{
			Queue: "q", MaxResponseBytes: limit, HeadersOnly: headersOnly,
		}, grpc.MaxCallRecvMsgSize(receive))
		require.NoError(t, err)
		for {
			resp, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return messages, nil
			}
			if err != nil {
				return messages, err
			}
			messages += len(resp.GetMessages())
		}
	}
	messages, err := browse(false, 64<<10, 64<<10)
	require.Equal(t, 100, messages, "a batch may be split")
	require.ErrorIs(t, kind(err), apierror.ErrResponseTooLarge)
	require.Contains(t, err.Error(), "sequence 101")
	require.Contains(t, err.Error(), "max_response_bytes")
	for _, c := range []struct {
		headersOnly    bool
		limit, receive int
	}{{true, 1 << 10, 1 << 10}, {false, 0, 4 << 20}, {false, 32 << 20, 32 << 20}} {
		messages, err = browse(c.headersOnly, uint32(c.limit), c.receive)
		require.NoError(t, err, "%+v", c)
		require.Equal(t, 101, messages, "%+v", c)
	}
}

// Messages that together exceed the consumer's receive limit are split into several responses. If a single
// message exceeds the limit, the stream fails with an error of the node that contains its sequence, and not with
// an error of the consumer's gRPC library.
func TestConsumeLimit(t *testing.T) { simulated(t, testConsumeLimit) }

func testConsumeLimit(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	for range 6 {
		n.publish("q", string(bytes.Repeat([]byte("x"), 900<<10)))
	}
	n.publish("q", string(bytes.Repeat([]byte("x"), 3<<20)))
	n.createQueue("small")
	n.publish("small", slices.Repeat([]string{string(bytes.Repeat([]byte("x"), 9<<10))}, 100)...)
	consumeFrom := func(queue string, want int, limit uint32, receive int) (messages int, err error) {
		stream, err := n.queues.Consume(t.Context(), grpc.MaxCallRecvMsgSize(receive))
		require.NoError(t, err)
		require.NoError(t, stream.Send(&pb.ConsumeRequest{
			Attach: &pb.Attach{Queue: queue, MaxResponseBytes: limit},
			Credit: 100,
		}))
		for messages < want {
			resp, err := stream.Recv()
			if err != nil {
				return messages, err
			}
			messages += len(resp.GetMessages())
		}
		require.NoError(t, stream.CloseSend())
		_, err = stream.Recv()
		require.Error(t, err) // the end
		return messages, nil
	}
	messages, err := consumeFrom("small", 100, 64<<10, 64<<10)
	require.NoError(t, err, "a batch may be split")
	require.Equal(t, 100, messages)
	consume := func(limit uint32, receive int) (int, error) { return consumeFrom("q", 7, limit, receive) }
	messages, err = consume(0, 4<<20)
	require.NoError(t, err, "gRPC's default applies")
	require.Equal(t, 7, messages)
	messages, err = consume(1<<20, 1<<20)
	require.Equal(t, 6, messages)
	require.ErrorIs(t, kind(err), apierror.ErrResponseTooLarge)
	require.Contains(t, err.Error(), "sequence 7")
	require.Contains(t, err.Error(), "max_response_bytes")
	messages, err = consume(32<<20, 32<<20)
	require.NoError(t, err)
	require.Equal(t, 7, messages)
}
