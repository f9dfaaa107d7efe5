// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// DeadLetter describes the origin of a dead letter and the reason for the move.
type DeadLetter struct {
	// Queue and Subscription that the message came from, by their names at the time of the move.
	Queue, Subscription string
	// Sequence of the message in that queue.
	Sequence uint64
	// Reason for the move.
	Reason DeadLetterReason
	// Deliveries is the number of deliveries by that subscription.
	Deliveries uint32
	// MovedAt is the time of the move, by the clock of the active node.
	MovedAt time.Time
}

// DeadLetterReason is the reason why a message was moved to a dead-letter queue.
type DeadLetterReason int

// Values of DeadLetterReason. A node of a later release may send others.
const (
	// DeadLetterMaxDeliveries means that the message reached QueueConfig.MaxDeliveries.
	DeadLetterMaxDeliveries = DeadLetterReason(pb.DeadLetterReason_DEAD_LETTER_REASON_MAX_DELIVERIES)
	// DeadLetterRejected means that a consumer rejected the message.
	DeadLetterRejected = DeadLetterReason(pb.DeadLetterReason_DEAD_LETTER_REASON_REJECTED)
	// DeadLetterExpired means that the message expired before it was acknowledged.
	DeadLetterExpired = DeadLetterReason(pb.DeadLetterReason_DEAD_LETTER_REASON_EXPIRED)
	// DeadLetterOverflow means that the queue was full and the message was one of the oldest.
	DeadLetterOverflow = DeadLetterReason(pb.DeadLetterReason_DEAD_LETTER_REASON_OVERFLOW)
)

// String returns the name of the reason: "max-deliveries", "rejected", "expired" or "overflow".
func (r DeadLetterReason) String() string {
	switch r {
	case DeadLetterMaxDeliveries:
		return "max-deliveries"
	case DeadLetterRejected:
		return "rejected"
	case DeadLetterExpired:
		return "expired"
	case DeadLetterOverflow:
		return "overflow"
	default:
		return fmt.Sprintf("reason-%d", int(r))
	}
}

func deadLetterFromProto(d *pb.DeadLetter) *DeadLetter {
	if d == nil {
		return nil
	}
	return &DeadLetter{
		Queue: d.GetQueue(), Subscription: d.GetSubscription(), Sequence: d.GetSequence(),
		Reason: DeadLetterReason(d.GetReason()), Deliveries: d.GetDeliveries(), MovedAt: timeFromProto(d.GetMovedAt()),
	}
}
