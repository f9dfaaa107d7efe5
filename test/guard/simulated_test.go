// SPDX-License-Identifier: Apache-2.0

//go:build unix

package guard

import (
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/simpair"
)

// The allocations per message of a pair and its client together are within their windows. In simulated time, a slow
// machine adds no background work, such as heartbeats, to a request, so the first count must be within the window. The
// measure tier counts the allocations of each node in real time (TestServerAllocations).
func TestPairAllocations(t *testing.T) {
	for _, l := range []load{
		{"100 at a time", 100, 100, 1, bodyBytes},
		{"1 at a time", 600, 1, 1, bodyBytes},
	} {
		t.Run(l.name, func(t *testing.T) {
			simpair.Test(t, func(t *testing.T, w *simpair.World) {
				active, _ := w.StartPair()
				conn := w.Connect(active.Ready.Advertise)
				_, err := pb.NewQueueServiceClient(conn).CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: queue})
				require.NoError(t, err)
				next := uint64(0)
				publish(t, conn, l, warmUp, &next)
				runtime.GC()
				defer debug.SetGCPercent(debug.SetGCPercent(-1)) // a collection empties pools
				before := mallocs()
				publish(t, conn, l, l.requests, &next)
				check(t, "pair and client: allocations per message, "+l.name,
					float64(mallocs()-before)/float64(l.requests*l.messages))
			})
		})
	}
}
