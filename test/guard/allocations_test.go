// SPDX-License-Identifier: Apache-2.0

//go:build measure

package guard

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// A pair's allocations per published message are within their windows.
func TestServerAllocations(t *testing.T) {
	active, standby, conn := startPair(t)
	var err error
	next, stored := uint64(0), 0
	for _, l := range []load{
		{"pipelined requests of 100", 300, 100, 64, bodyBytes},
		// If requests are sent one by one, each request is a separate batch on any machine. The count is an upper bound
		// for pipelined requests.
		{"100 at a time", 300, 100, 1, bodyBytes},
		{"1 at a time", 600, 1, 1, bodyBytes},
	} {
		publish(t, conn, l, warmUp, &next)
		stored += warmUp * l.messages
		// The counts include background work, such as peer monitoring, and requests are slow on a busy machine. The cost of
		// a message is the minimum of three attempts, or of more while it is too high.
		tries, mostTries := 1, 1
		if l.window == 1 {
			tries, mostTries = 3, 20
		}
		a, b := math.Inf(1), math.Inf(1)
		mostA := windowOf(t, "active: allocations per message, "+l.name).most
		mostB := windowOf(t, "standby: allocations per message, "+l.name).most
		messages := float64(l.requests * l.messages)
		for i := 0; i < tries || i < mostTries && (a > mostA || b > mostB); i++ {
			beforeActive, beforeStandby := active.counts(), standby.counts()
			publish(t, conn, l, l.requests, &next)
			a = min(a, float64(active.counts().since(beforeActive).Allocations)/messages)
			b = min(b, float64(standby.counts().since(beforeStandby).Allocations)/messages)
			stored += l.requests * l.messages
		}
		check(t, "active: allocations per message, "+l.name, a)
		check(t, "standby: allocations per message, "+l.name, b)
	}
	// The published data is below the threshold at which a node writes pages.
	before := active.counts()
	_, err = pb.NewAdminServiceClient(conn).Checkpoint(t.Context(), &pb.CheckpointRequest{})
	require.NoError(t, err)
	check(t, "active: allocations per message, written to pages",
		float64(active.counts().since(before).Allocations)/float64(stored))
}
