// SPDX-License-Identifier: Apache-2.0

package console

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// The form of a queue changes only the fields that differ. Values set by policies are not set on the queue
// itself.
func TestChangedFields(t *testing.T) {
	q := &pb.Queue{
		Config: &pb.QueueConfig{MaxMessages: 10, MaxDeliveries: 5, DeadLetter: "dead", MaxBytes: 1024},
		Sources: &pb.QueueSources{
			Own: &pb.QueueConfig{MaxMessages: 20, MaxBytes: 1024}, OwnFields: []string{"max_bytes", "max_messages"},
			Policy: "orders.*", LimitPolicy: "*", LimitedFields: []string{"max_messages"},
		},
	}
	sources := map[string]string{}
	for _, f := range setFields(q) {
		sources[f.Name] = f.Policy
	}
	require.Equal(t, map[string]string{
		"max_messages": "*", "max_bytes": "", "max_deliveries": "orders.*", "dead_letter": "orders.*",
	}, sources)

	set, reset := changedFields(q, &pb.QueueConfig{
		MaxMessages: 10, MaxDeliveries: 5, DeadLetter: "dead", MaxBytes: 1024, Overflow: pb.Overflow_OVERFLOW_REJECT,
	})
	require.Empty(t, set)
	require.Empty(t, reset)
	set, reset = changedFields(q, &pb.QueueConfig{
		MaxMessages: 9, MaxDeliveries: 5, Overflow: pb.Overflow_OVERFLOW_DROP_HEAD,
	})
	require.Equal(t, []string{"max_messages", "dead_letter", "overflow"}, set, "the policy's value was cleared")
	require.Equal(t, []string{"max_bytes"}, reset)
}
