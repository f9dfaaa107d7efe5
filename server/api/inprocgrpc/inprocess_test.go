// SPDX-License-Identifier: Apache-2.0

package inprocgrpc_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/proto/codec"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/inprocgrpc"
)

var limits = inprocgrpc.Limits{RequestBytes: 1 << 20, MetadataBytes: 64 << 10}

// queues is a service with handlers provided by the test.
type queues struct {
	pb.UnimplementedQueueServiceServer

	create  func(context.Context, *pb.CreateQueueRequest) (*pb.CreateQueueResponse, error)
	browse  func(*pb.BrowseRequest, grpc.ServerStreamingServer[pb.BrowseResponse]) error
	consume func(grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse]) error
	publish func(grpc.BidiStreamingServer[pb.PublishStreamRequest, pb.PublishStreamResponse]) error
}

func (q *queues) CreateQueue(ctx context.Context, r *pb.CreateQueueRequest) (*pb.CreateQueueResponse, error) {
	return q.create(ctx, r)
}

func (q *queues) Browse(r *pb.BrowseRequest, s grpc.ServerStreamingServer[pb.BrowseResponse]) error {
	return q.browse(r, s)
}

func (q *queues) Consume(s grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse]) error {
	return q.consume(s)
}

func (q *queues) PublishStream(
	s grpc.BidiStreamingServer[pb.PublishStreamRequest, pb.PublishStreamResponse],
) error {
	return q.publish(s)
}

// connected returns a client of a service over a link.
func connected(t *testing.T, q *queues) (pb.QueueServiceClient, *inprocgrpc.Link) {
	t.Helper()
	link := inprocgrpc.New(limits)
	pb.RegisterQueueServiceServer(link, q)
	t.Cleanup(func() { link.Close(0) })
	return pb.NewQueueServiceClient(link), link
}

// The context of a call contains the address and the certificate of its caller until the caller leaves. For other
// calls, it contains a placeholder address and no certificate.
func TestCallerIdentity(t *testing.T) {
	var seen *peer.Peer
	client, link := connected(t, &queues{
		create: func(ctx context.Context, _ *pb.CreateQueueRequest) (*pb.CreateQueueResponse, error) {
			seen, _ = peer.FromContext(ctx)
			return &pb.CreateQueueResponse{}, nil
		},
	})
	call := func(ctx context.Context) *peer.Peer {
		_, err := client.CreateQueue(ctx, &pb.CreateQueueRequest{})
		require.NoError(t, err)
		return seen
	}
	alice := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 7}
	key, leave := link.Enter(inprocgrpc.Caller{Addr: alice, TLS: &tls.ConnectionState{ServerName: "x"}})
	bob := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2), Port: 7}
	other, detachPeer := link.Enter(inprocgrpc.Caller{Addr: bob})
	defer detachPeer()

	p := call(inprocgrpc.As(t.Context(), key))
	require.Equal(t, alice, p.Addr)
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	require.True(t, ok)
	require.Equal(t, "x", info.State.ServerName)
	p = call(inprocgrpc.As(t.Context(), other))
	require.Equal(t, bob, p.Addr)
	require.Nil(t, p.AuthInfo)
	leave()
	type ownCopy struct{}
	for _, ctx := range []context.Context{
		t.Context(), inprocgrpc.As(t.Context(), key), inprocgrpc.As(t.Context(), 77),
		peer.NewContext(context.WithValue(t.Context(), ownCopy{}, other), &peer.Peer{Addr: bob}),
	} {
		p = call(ctx)
		require.Equal(t, "unix", p.Addr.Network())
		require.Nil(t, p.AuthInfo)
	}
}

// outcome is the result of a call as the caller observes it.
type outcome struct {
	code            codes.Code
	text            string
	details         int
	header, trailer []string
	responses       int
}

// overBoth makes a call over a link and over a network connection. It requires the same outcome and returns it.
func overBoth(t *testing.T, q *queues, call func(client pb.QueueServiceClient) outcome) outcome {
	t.Helper()
	return servedBoth(t, func(r grpc.ServiceRegistrar) { pb.RegisterQueueServiceServer(r, q) },
		func(conn grpc.ClientConnInterface) outcome { return call(pb.NewQueueServiceClient(conn)) })
}

// servedBoth is like overBoth, but for any services.
func servedBoth(
	t *testing.T, register func(grpc.ServiceRegistrar), call func(conn grpc.ClientConnInterface) outcome,
) outcome {
	t.Helper()
	link := inprocgrpc.New(limits)
	register(link)
	defer link.Close(0)
	listener := bufconn.Listen(1 << 16)
	server := grpc.NewServer(append(codec.MarkingServerOptions(), grpc.MaxRecvMsgSize(limits.RequestBytes))...)
	register(server)
	go func() { _ = server.Serve(listener) }()
	defer server.Stop()
	conn, err := grpc.NewClient("passthrough:///", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	require.NoError(t, err)
	defer func() { _ = conn.Close() }()
	want, got := call(conn), call(link)
	want.text = strings.TrimPrefix(want.text, "grpc: ")
	require.Equal(t, want, got)
	return got
}

func outcomeOf(err error, header, trailer metadata.MD) outcome {
	s := status.Convert(err)
	return outcome{
		code: s.Code(), text: s.Message(), details: len(s.Details()), header: header.Get("h"), trailer: trailer.Get("t"),
	}
}

func detailed(t *testing.T) error {
	t.Helper()
	s, err := status.New(codes.Aborted, "why").WithDetails(&pb.Submitted{Through: 7})
	require.NoError(t, err)
	return s.Err()
}

// Errors, details, headers and trailers of unary and streaming calls are the same as over the network.
func TestSameAsTheNetwork(t *testing.T) {
	failures := map[string]error{
		"none": nil, "a status": detailed(t), "wrapped": fmt.Errorf("so: %w", detailed(t)),
		"no status": errors.New("bare"), "context": context.DeadlineExceeded, "wrapped end": fmt.Errorf("x: %w", io.EOF),
	}
	for name, failure := range failures {
		t.Run(name, func(t *testing.T) {
			q := &queues{
				create: func(ctx context.Context, r *pb.CreateQueueRequest) (*pb.CreateQueueResponse, error) {
					require.NoError(t, grpc.SetHeader(ctx, metadata.Pairs("h", r.GetName())))
					require.NoError(t, grpc.SetTrailer(ctx, metadata.Pairs("t", "1", "t", "2")))
					method, _ := grpc.Method(ctx)
					require.Equal(t, pb.QueueService_CreateQueue_FullMethodName, method)
					return &pb.CreateQueueResponse{}, failure
				},
				browse: func(r *pb.BrowseRequest, s grpc.ServerStreamingServer[pb.BrowseResponse]) error {
					require.NoError(t, s.SetHeader(metadata.Pairs("h", r.GetQueue())))
					for range 3 {
						require.NoError(t, s.Send(&pb.BrowseResponse{}))
					}
					require.Error(t, s.SetHeader(metadata.Pairs("h", "late")))
					s.SetTrailer(metadata.Pairs("t", "3"))
					return failure
				},
			}
			overBoth(t, q, func(client pb.QueueServiceClient) outcome {
				var header, trailer metadata.MD
				_, err := client.CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "q"}, grpc.Header(&header),
					grpc.Trailer(&trailer))
				return outcomeOf(err, header, trailer)
			})
			got := overBoth(t, q, func(client pb.QueueServiceClient) outcome {
				s, err := client.Browse(t.Context(), &pb.BrowseRequest{Queue: "q"})
				require.NoError(t, err)
				n := 0
				for ; err == nil; n++ {
					_, err = s.Recv()
				}
				if errors.Is(err, io.EOF) {
					err = nil
				}
				header, herr := s.Header()
				require.NoError(t, herr)
				a := outcomeOf(err, header, s.Trailer())
				a.responses = n
				return a
			})
			require.Equal(t, 4, got.responses)
		})
	}
}

// Calls that exceed a size limit, contain invalid UTF-8 or name an unknown method have the same outcome as over
// the network.
func TestSameLimits(t *testing.T) {
	q := &queues{
		create: func(_ context.Context, r *pb.CreateQueueRequest) (*pb.CreateQueueResponse, error) {
			return &pb.CreateQueueResponse{Queue: &pb.Queue{Name: strings.Repeat("x", int(r.GetConfig().GetMaxMessages()))}}, nil
		},
		publish: func(s grpc.BidiStreamingServer[pb.PublishStreamRequest, pb.PublishStreamResponse]) error {
			var in codec.ReceivedPublish
			if err := s.RecvMsg(&in); err != nil {
				return err
			}
			return s.Send(&pb.PublishStreamResponse{Correlation: uint64(len(in.Request.GetPublish().GetMessages()))})
		},
	}
	create := func(name string, responseBytes uint64, options ...grpc.CallOption) outcome {
		return overBoth(t, q, func(client pb.QueueServiceClient) outcome {
			_, err := client.CreateQueue(t.Context(), &pb.CreateQueueRequest{
				Name: name, Config: &pb.QueueConfig{MaxMessages: responseBytes},
			}, options...)
			a := outcomeOf(err, nil, nil)
			if a.code == codes.Internal {
				a.text = "" // differs per transport
			}
			return a
		})
	}
	publish := func(m *pb.PublishStreamRequest) outcome {
		return overBoth(t, q, func(client pb.QueueServiceClient) outcome {
			s, err := client.PublishStream(t.Context())
			require.NoError(t, err)
			if err = s.Send(m); err == nil {
				_, err = s.Recv()
			}
			a := outcomeOf(err, nil, nil)
			if a.code == codes.Internal {
				a.text = ""
			}
			return a
		})
	}
	require.Equal(t, codes.OK, create(strings.Repeat("x", limits.RequestBytes-8), 0).code)
	require.Equal(t, codes.ResourceExhausted, create(strings.Repeat("x", limits.RequestBytes), 0).code)
	require.Equal(t, codes.OK, create("", 4<<20-100).code)
	require.Equal(t, codes.ResourceExhausted, create("", 4<<20).code)
	require.Equal(t, codes.OK, create("", 4<<20, grpc.MaxCallRecvMsgSize(5<<20)).code)
	require.Equal(t, codes.Internal, create("\xff", 0).code, "not UTF-8")

	of := func(messages ...*pb.Message) *pb.PublishStreamRequest {
		return &pb.PublishStreamRequest{Publish: &pb.PublishRequest{Queue: "q", Messages: messages}}
	}
	require.Equal(t, codes.OK, publish(of(&pb.Message{Body: make([]byte, limits.RequestBytes-100)})).code)
	require.Equal(t, codes.ResourceExhausted, publish(of(&pb.Message{Body: make([]byte, limits.RequestBytes)})).code)
	require.Equal(t, codes.OK, publish(of(nil, &pb.Message{})).code)
	bad := "\xff"
	for name, m := range map[string]*pb.PublishStreamRequest{
		"queue":    {Publish: &pb.PublishRequest{Queue: bad}},
		"producer": {Publish: &pb.PublishRequest{Producer: &pb.Producer{Id: bad}}},
		"more":     {More: []*pb.PublishStreamRequest{{Publish: &pb.PublishRequest{Queue: bad}}}},
		"deeper": {More: []*pb.PublishStreamRequest{{More: []*pb.PublishStreamRequest{
			{Publish: &pb.PublishRequest{Queue: bad}},
		}}}},
		"key": of(&pb.Message{Properties: map[string]string{bad: ""}}), "id": of(&pb.Message{MessageId: bad}),
		"value": of(&pb.Message{Properties: map[string]string{"": bad}}), "group": of(&pb.Message{Group: bad}),
		"typed":   of(&pb.Message{TypedProperties: map[string]*pb.PropertyValue{bad: {}}}),
		"subject": of(&pb.Message{}, &pb.Message{Subject: bad}), "reply": of(&pb.Message{ReplyTo: bad}),
		"correlation": of(&pb.Message{CorrelationId: bad}), "type": of(&pb.Message{ContentType: bad}),
	} {
		require.Equal(t, codes.Internal, publish(m).code, name)
	}

	client, link := connected(t, q)
	err := link.Invoke(t.Context(), "/no.Service/Call", &pb.CreateQueueRequest{}, &pb.CreateQueueResponse{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	err = link.Invoke(t.Context(), "/lockstep.v1.QueueService/Nothing", &pb.CreateQueueRequest{},
		&pb.CreateQueueResponse{})
	require.Equal(t, codes.Unimplemented, status.Code(err))
	_, err = link.NewStream(t.Context(), &grpc.StreamDesc{}, pb.QueueService_CreateQueue_FullMethodName)
	require.Equal(t, codes.Unimplemented, status.Code(err))
	_, err = link.NewStream(t.Context(), &grpc.StreamDesc{}, "nonsense")
	require.Equal(t, codes.Unimplemented, status.Code(err))
	_, err = client.CreateQueue(metadata.AppendToOutgoingContext(t.Context(), "k", strings.Repeat("x", 65<<10)),
		&pb.CreateQueueRequest{})
	require.Equal(t, codes.Internal, status.Code(err))
	_, err = client.CreateQueue(t.Context(), &pb.CreateQueueRequest{}, grpc.UseCompressor("gzip"))
	require.Error(t, err, "unsupported options are rejected")
	require.Contains(t, err.Error(), "CompressorCallOption")
}

// Each side of a stream is notified when the other side ends, regardless of whether it receives, sends or waits.
func TestEndReachesOtherSide(t *testing.T) {
	waits := map[string]func(s grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse]) error{
		"receives": func(s grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse]) error {
			_, err := s.Recv()
			return err
		},
		"sends": func(s grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse]) error {
			for {
				if err := s.Send(&pb.ConsumeResponse{}); err != nil {
					return err
				}
			}
		},
		"waits": func(s grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse]) error {
			<-s.Context().Done()
			return s.Context().Err()
		},
	}
	for name, wait := range waits {
		synctest.Test(t, func(t *testing.T) {
			ended := make(chan error, 1)
			q := &queues{consume: func(s grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse]) error {
				err := wait(s)
				ended <- err
				require.Error(t, s.Send(&pb.ConsumeResponse{}))
				return err
			}}
			// The caller cancels the call.
			client, link := connected(t, q)
			ctx, cancel := context.WithCancel(t.Context())
			s, err := client.Consume(ctx)
			require.NoError(t, err)
			synctest.Wait()
			require.Empty(t, ended, name)
			cancel()
			require.Contains(t, fmt.Sprint(<-ended), context.Canceled.Error(), name)
			for err = nil; err == nil; {
				_, err = s.Recv()
			}
			require.Equal(t, codes.Canceled, status.Code(err), name)
			require.ErrorIs(t, s.Send(&pb.ConsumeRequest{}), io.EOF)

			// The deadline of the call expires.
			ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err = client.Consume(ctx)
			require.NoError(t, err)
			require.Error(t, <-ended)
			require.Equal(t, context.DeadlineExceeded, ctx.Err())

			// The node stops.
			s, err = client.Consume(t.Context())
			require.NoError(t, err)
			start := time.Now()
			link.Close(time.Second)
			require.Equal(t, time.Second, time.Since(start))
			require.Error(t, <-ended)
			for err = nil; err == nil; {
				_, err = s.Recv()
			}
			require.Equal(t, codes.Canceled, status.Code(err), name)
			_, err = client.Consume(t.Context())
			require.Equal(t, codes.Unavailable, status.Code(err))
			_, err = client.CreateQueue(t.Context(), &pb.CreateQueueRequest{})
			require.Equal(t, codes.Unavailable, status.Code(err))
		})
	}
}

// A client that receives after the handler has returned still receives its responses, and then its error.
func TestResponsesPrecedeEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queues{consume: func(s grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse]) error {
			if _, err := s.Recv(); err != nil {
				return err
			}
			for i := range uint64(3) {
				if err := s.Send(&pb.ConsumeResponse{Confirmed: i + 1}); err != nil {
					return err
				}
			}
			return status.Error(codes.DataLoss, "bad")
		}}
		client, _ := connected(t, q)
		s, err := client.Consume(t.Context())
		require.NoError(t, err)
		for err == nil {
			err = s.Send(&pb.ConsumeRequest{})
		}
		require.ErrorIs(t, err, io.EOF)
		for i := range uint64(3) {
			r, err := s.Recv()
			require.NoError(t, err)
			require.Equal(t, i+1, r.GetConfirmed())
		}
		_, err = s.Recv()
		require.Equal(t, codes.DataLoss, status.Code(err))

		// The handler receives messages sent before CloseSend, and then the end of the stream.
		var got []uint64
		q.consume = func(s grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse]) error {
			<-time.After(time.Second)
			for {
				r, err := s.Recv()
				if errors.Is(err, io.EOF) {
					return nil
				}
				if err != nil {
					return err
				}
				got = append(got, r.GetConfirm())
			}
		}
		s, err = client.Consume(t.Context())
		require.NoError(t, err)
		for i := range uint64(10) {
			require.NoError(t, s.Send(&pb.ConsumeRequest{Confirm: i}), "Send blocks until the handler receives")
		}
		require.NoError(t, s.CloseSend())
		require.NoError(t, s.CloseSend())
		require.Equal(t, codes.Internal, status.Code(s.Send(&pb.ConsumeRequest{})))
		_, err = s.Recv()
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, []uint64{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, got)
	})
}

// If a call is rejected before its request arrives, the caller's receive call returns the error. The send call of a
// client-streaming method returns io.EOF. The send call of a method with a single request does not, because
// generated clients would then not call RecvMsg.
func TestRejectedBeforeRequest(t *testing.T) {
	for _, desc := range []grpc.StreamDesc{
		{StreamName: "One", ServerStreams: true}, {StreamName: "Several", ServerStreams: true, ClientStreams: true},
	} {
		t.Run(desc.StreamName, func(t *testing.T) {
			desc.Handler = func(any, grpc.ServerStream) error { return detailed(t) }
			register := func(r grpc.ServiceRegistrar) {
				r.RegisterService(&grpc.ServiceDesc{ServiceName: "refused", Streams: []grpc.StreamDesc{desc}}, nil)
			}
			got := servedBoth(t, register, func(conn grpc.ClientConnInterface) outcome {
				s, err := conn.NewStream(t.Context(), &desc, "/refused/"+desc.StreamName)
				require.NoError(t, err)
				_, err = s.Header()
				require.Condition(t, func() bool { return err == nil || status.Code(err) == codes.Aborted })
				err = s.SendMsg(&pb.BrowseRequest{})
				if desc.ClientStreams {
					require.ErrorIs(t, err, io.EOF)
				} else {
					require.NoError(t, err)
				}
				return outcomeOf(s.RecvMsg(&pb.BrowseResponse{}), nil, nil)
			})
			require.Equal(t, codes.Aborted, got.code)
			require.Equal(t, 1, got.details)
		})
	}
}

// A call returns at its deadline even if the handler continues to run.
func TestDeadlineIgnoredByHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queues{create: func(context.Context, *pb.CreateQueueRequest) (*pb.CreateQueueResponse, error) {
			<-time.After(time.Hour)
			return &pb.CreateQueueResponse{}, nil
		}}
		client, _ := connected(t, q)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := client.CreateQueue(ctx, &pb.CreateQueueRequest{})
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
		_, err = client.CreateQueue(ctx, &pb.CreateQueueRequest{})
		require.Equal(t, codes.DeadlineExceeded, status.Code(err))
	})
}

// A message passed by reference arrives with all fields, and its bodies are not copied.
func TestPassedByReference(t *testing.T) {
	request := &pb.PublishStreamRequest{
		Correlation: 1, AcceptsMore: true, Resumes: true, More: []*pb.PublishStreamRequest{{Correlation: 2}},
		Publish: &pb.PublishRequest{
			Queue: "q", Messages: []*pb.Message{{Body: []byte("body"), Subject: "s"}}, Producer: &pb.Producer{Id: "p"},
		},
	}
	response := &pb.PublishStreamResponse{
		Correlation: 1, Published: &pb.PublishResponse{Lsn: 7}, AcceptsMore: true, More: []*pb.PublishStreamResponse{
			{Correlation: 2},
		},
	}
	failed := &pb.PublishStreamResponse{Correlation: 3, Error: &pb.RequestError{Message: "m"}}
	ranges := func(n uint64) []*pb.SequenceRange { return []*pb.SequenceRange{{First: n, Last: n}} }
	settlements := &pb.ConsumeRequest{
		Credit: 5, Ack: ranges(1), Nack: ranges(2), Reject: ranges(3), Release: ranges(4), Confirm: 9,
		Leave: &pb.Leave{Seen: ranges(5)}, Drain: 6,
	}
	q := &queues{
		publish: func(s grpc.BidiStreamingServer[pb.PublishStreamRequest, pb.PublishStreamResponse]) error {
			var in codec.ReceivedPublish
			require.NoError(t, s.RecvMsg(&in))
			require.True(t, proto.Equal(request, &in.Request))
			require.Same(t, request.GetPublish().GetMessages()[0], in.Request.GetPublish().GetMessages()[0])
			in.Reset()
			require.NotEmpty(t, request.GetPublish().GetMessages(), "Reset does not change the sent message")
			plain, err := s.Recv()
			require.NoError(t, err)
			require.True(t, proto.Equal(request, plain))
			require.NoError(t, s.Send(response))
			return s.Send(failed)
		},
		consume: func(s grpc.BidiStreamingServer[pb.ConsumeRequest, pb.ConsumeResponse]) error {
			for _, want := range []*pb.ConsumeRequest{settlements, {Attach: &pb.Attach{Queue: "q"}}} {
				got, err := s.Recv()
				require.NoError(t, err)
				require.True(t, proto.Equal(want, got), "%v", got)
			}
			if err := s.SendMsg(maker{}); err != nil {
				return err
			}
			return s.SendMsg(maker{bytes: 1 << 30})
		},
	}
	client, _ := connected(t, q)
	p, err := client.PublishStream(t.Context())
	require.NoError(t, err)
	require.NoError(t, p.Send(request))
	require.NoError(t, p.Send(request))
	for _, want := range []*pb.PublishStreamResponse{response, failed} {
		got, err := p.Recv()
		require.NoError(t, err)
		require.True(t, proto.Equal(want, got), "%v", got)
	}
	c, err := client.Consume(t.Context())
	require.NoError(t, err)
	require.NoError(t, c.Send(settlements))
	require.NoError(t, c.Send(&pb.ConsumeRequest{Attach: &pb.Attach{Queue: "q"}}))
	got, err := c.Recv()
	require.NoError(t, err)
	require.True(t, proto.Equal(maker{}.MakeMessage(), got), "%v", got)
	_, err = c.Recv()
	require.NoError(t, err, "the actual size is below the limit")
}

// maker implements inprocgrpc.Maker.
type maker struct{ bytes int }

func (maker) MakeMessage() proto.Message {
	return &pb.ConsumeResponse{
		Messages: []*pb.StoredMessage{{Sequence: 5}}, Confirmed: 4, Attached: true, QueueId: 3,
		Waiting: []*pb.SequenceRange{{First: 1, Last: 2}}, Moved: []*pb.SequenceRange{{First: 3, Last: 4}},
		Drained: 7, DrainedCredit: 8,
	}
}

func (m maker) TotalBytes() int { return m.bytes }
