// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// DeadLetter describes the origin of a dead letter and the reason why it was moved.
type DeadLetter struct {
	// Queue and Subscription are the names of the original queue and subscription at the time of the move.
	Queue, Subscription string
	// Sequence is the sequence of the message in the original queue.
	Sequence uint64
	// Reason is the reason for the move: "max-deliveries", "rejected", "expired" or "overflow". Later releases may add
	// reasons.
	Reason string
	// Deliveries is the number of deliveries by the original subscription.
	Deliveries uint32
	// MovedAt is the time of the move, by the clock of the active node.
	MovedAt time.Time
}

func deadLetterFromProto(d *pb.DeadLetter) *DeadLetter {
	if d == nil {
		return nil
	}
	return &DeadLetter{
		Queue: d.GetQueue(), Subscription: d.GetSubscription(), Sequence: d.GetSequence(),
		Reason: deadLetterReason(d.GetReason()), Deliveries: d.GetDeliveries(), MovedAt: link.TimeFromProto(d.GetMovedAt()),
	}
}

// deadLetterReason returns the name of a reason, such as "max-deliveries" for DEAD_LETTER_REASON_MAX_DELIVERIES.
func deadLetterReason(r pb.DeadLetterReason) string {
	name, known := strings.CutPrefix(r.String(), "DEAD_LETTER_REASON_")
	if !known {
		return fmt.Sprintf("reason-%d", int(r))
	}
	return strings.ToLower(strings.ReplaceAll(name, "_", "-"))
}
