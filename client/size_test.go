// SPDX-License-Identifier: Apache-2.0

package client

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/semaphore"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// TestMemoryPerMessage limits the memory that the client uses for a published or delivered message, in addition to the
// message.
func TestMemoryPerMessage(t *testing.T) {
	require.LessOrEqual(t, unsafe.Sizeof(Pending{}), uintptr(128))
	require.LessOrEqual(t, unsafe.Sizeof(Delivery{}), uintptr(288))
	ms := []Message{{Body: make([]byte, 512)}}
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() { _, _ = newEntry("q", ms, 1<<20) }), 1.0)
	p := &Producer{
		client: &Client{opts: Options{MaxMessageBytes: 1 << 20}, owners: &owners{}},
		opts:   ProducerOptions{MaxPendingBytes: 1 << 30},
		budget: semaphore.NewWeighted(1 << 30), home: &pipeline{wake: make(chan struct{}, 1)},
	}
	body := make([]byte, 512)
	published := testing.AllocsPerRun(1000, func() { p.PublishAsync(t.Context(), "q", Message{Body: body}) })
	require.LessOrEqual(t, published, 1.0, "allocation of the message")
	co := &Consumer{}
	stored := make([]*pb.StoredMessage, 160)
	for i := range stored {
		stored[i] = &pb.StoredMessage{
			PublishedAt: timestamppb.Now(), Sequence: uint64(i), Message: &pb.Message{Body: ms[0].Body},
		}
	}
	allocations := testing.AllocsPerRun(100, func() { co.deliveries(stored) })
	require.LessOrEqual(t, allocations, 1+float64(len(stored)/together), "for %d deliveries", len(stored))
}
