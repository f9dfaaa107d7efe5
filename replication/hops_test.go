// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/lockstep-mq/lockstep/proto/codec"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// BenchmarkHops measures the lower bound for the latency of a synchronous publish on a machine: gRPC processing and
// CPU wakeups. A message of 512 bytes and its response travel between two processes, or through a third one as in a
// pair. Nothing is stored.
//
//	go test ./replication -run '^$' -bench Hops

const hopsListen, hopsNext = "LOCKSTEP_HOPS_LISTEN", "LOCKSTEP_HOPS_NEXT"

// TestHopsServer is a server process of BenchmarkHops; it does nothing without the environment variable.
func TestHopsServer(t *testing.T) {
	address := os.Getenv(hopsListen)
	if address == "" {
		return
	}
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	require.NoError(t, err)
	s := grpc.NewServer(codec.MarkingServerOptions()...)
	pb.RegisterQueueServiceServer(s, &hop{next: os.Getenv(hopsNext)})
	require.NoError(t, s.Serve(l)) // until it is killed
}

// hop responds to each request. If a next hop is set, it first waits for the response of that hop.
type hop struct {
	pb.UnimplementedQueueServiceServer

	next string
}

func (h *hop) PublishStream(in grpc.BidiStreamingServer[pb.PublishStreamRequest, pb.PublishStreamResponse]) error {
	var on grpc.BidiStreamingClient[pb.PublishStreamRequest, pb.PublishStreamResponse]
	if h.next != "" {
		var err error
		if on, err = dialHop(in.Context(), h.next); err != nil {
			return err
		}
	}
	for {
		req, err := in.Recv()
		if err != nil {
			return err
		}
		resp := &pb.PublishStreamResponse{Correlation: req.GetCorrelation()}
		if on != nil {
			if err := on.Send(req); err != nil {
				return err
			}
			if resp, err = on.Recv(); err != nil {
				return err
			}
		}
		if err := in.Send(resp); err != nil {
			return err
		}
	}
}

func dialHop(
	ctx context.Context, address string,
) (grpc.BidiStreamingClient[pb.PublishStreamRequest, pb.PublishStreamResponse], error) {
	cc, err := grpc.NewClient("passthrough:///"+address,
		append(codec.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return nil, err
	}
	return pb.NewQueueServiceClient(cc).PublishStream(ctx, grpc.WaitForReady(true))
}

func BenchmarkHops(b *testing.B) {
	var addresses []string
	for range 2 {
		l, err := new(net.ListenConfig).Listen(b.Context(), "tcp", "127.0.0.1:0")
		require.NoError(b, err)
		addresses = append(addresses, l.Addr().String())
		require.NoError(b, l.Close())
	}
	for i, next := range []string{"", addresses[0]} {
		c := exec.CommandContext(b.Context(), os.Args[0], "-test.run=^TestHopsServer$", "-test.timeout=0")
		c.Env = append(os.Environ(), hopsListen+"="+addresses[i], hopsNext+"="+next)
		require.NoError(b, c.Start())
		b.Cleanup(func() {
			_ = c.Process.Kill()
			_ = c.Wait()
		})
	}
	for i, name := range []string{"one", "two"} {
		b.Run(name, func(b *testing.B) {
			ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
			defer cancel()
			stream, err := dialHop(ctx, addresses[i])
			require.NoError(b, err)
			req := &pb.PublishStreamRequest{Publish: &pb.PublishRequest{
				Queue:    "q",
				Messages: []*pb.Message{{Body: make([]byte, 512)}},
			}}
			for b.Loop() {
				require.NoError(b, stream.Send(req))
				_, err := stream.Recv()
				require.NoError(b, err)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
		})
	}
}
