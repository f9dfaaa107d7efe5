// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package hostile

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// publishersAtOnce is the number of streams per connection of nonReadingPublishers, and nonReadingBytes the size of
// each request.
const (
	publishersAtOnce = 64
	nonReadingBytes  = 256 << 10
)

// nonReadingPublishers sends requests in many publish streams, as fast as the node accepts them, and reads no response.
func nonReadingPublishers(ctx context.Context, a *attacker, name string, _ int) {
	d := net.Dialer{}
	if ip := net.ParseIP(a.plan.From); ip != nil {
		d.LocalAddr = &net.TCPAddr{IP: ip}
	}
	conn, err := grpc.NewClient("passthrough:///"+a.plan.Address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, to string) (net.Conn, error) {
			return d.DialContext(ctx, "tcp", to)
		}))
	if err != nil {
		a.record(name, err.Error())
		return
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	ended := make(chan string, publishersAtOnce)
	for i := range publishersAtOnce {
		go func() {
			stream, err := pb.NewQueueServiceClient(conn).PublishStream(ctx)
			for n := uint64(1); err == nil; n++ {
				err = stream.Send(&pb.PublishStreamRequest{Correlation: n, Publish: &pb.PublishRequest{
					Queue: fmt.Sprint("no such queue ", i), Messages: []*pb.Message{{Body: make([]byte, nonReadingBytes)}},
				}})
			}
			ended <- "ended"
		}()
	}
	for range publishersAtOnce {
		a.record(name, <-ended)
	}
}
