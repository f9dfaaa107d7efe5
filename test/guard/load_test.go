// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// load is the traffic to the active on one stream: the number of requests, the number and the size of the messages
// in each, and the maximum number of requests in flight.
type load struct {
	name                       string
	requests, messages, window int
	bodyBytes                  int
}

const (
	bodyBytes = 512
	// warmUp is the number of requests before the counted requests, because connections, pools and maps grow once.
	warmUp = 100
)

// publish sends requests on one stream, as the client does. Their sequences follow *next, which is increased.
func publish(t *testing.T, conn *grpc.ClientConn, l load, requests int, next *uint64) {
	t.Helper()
	stream, err := pb.NewQueueServiceClient(conn).PublishStream(t.Context())
	require.NoError(t, err)
	body := make([]byte, l.bodyBytes)
	messages := make([]*pb.Message, l.messages)
	for i := range messages {
		messages[i] = &pb.Message{Body: body}
	}
	window := make(chan struct{}, l.window)
	var group errgroup.Group
	group.Go(func() error {
		for range requests {
			window <- struct{}{}
			*next++
			err := stream.Send(&pb.PublishStreamRequest{Correlation: *next, Publish: &pb.PublishRequest{
				Queue: queue, Messages: messages, Producer: &pb.Producer{Id: "guard", Epoch: 1, Sequence: *next},
			}})
			if err != nil {
				return err
			}
		}
		return stream.CloseSend()
	})
	for range requests {
		r, err := stream.Recv()
		require.NoError(t, err)
		require.Nil(t, r.GetError(), "%v", r)
		<-window
	}
	require.NoError(t, group.Wait())
}

// mallocs returns the number of allocations of the process so far.
func mallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}
