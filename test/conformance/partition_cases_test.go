// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package conformance

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
)

func partitionCases() []testCase {
	return []testCase{
		{name: "partitioned queue", run: partitionedQueue},
	}
}

// partitionedQueue: a client publishes the messages of a partitioned queue to the partitions of their groups, and
// consumes all partitions.
func partitionedQueue(t *testing.T, r *run) {
	const count = 3
	var queues []string
	for i := range count {
		queues = append(queues, r.queue(client.PartitionName("", i, count), nil))
	}
	whole, _, _ := strings.Cut(queues[0], "#")
	r.open("c", nil)
	groups := []string{"a", "b", "customer-7", "customer-8"}
	var pending []publication
	for range many {
		for _, g := range groups {
			to := queues[client.Partition(g, count)]
			pending = append(pending, r.publish(to, request{"queue": whole, "producer": "p"}, request{"group": g}))
		}
	}
	for _, p := range pending {
		got := r.recorded(p)
		require.Nil(t, got.Error)
	}
	r.consume("k", whole, nil)
	for range many * len(groups) {
		d, _ := r.receive("k")
		r.answer("k", d, "ack", nil)
	}
	r.flush("k")
	r.requireIdle("k")
	r.verify()
}
