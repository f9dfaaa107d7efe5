// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"unicode/utf8"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Forward is a rule of a queue: the messages that are published to it, or those of them that Filter matches, also go to
// another queue, in the same transaction. What is forwarded is not forwarded again, and what is moved to the queue as a
// dead letter, or replayed, is not forwarded.
type Forward struct {
	// To names the other queue. It must be there, must not forward itself, and cannot be deleted as long as it is named
	// here. While it is full, publishes of messages that go there are refused as a whole with ErrLimit.
	To string
	// Move: the messages go to the other queue only. The Receipt of a publish names the sequences that they would have
	// had here.
	Move bool
	// Filter is the expression that a message has to match, in CEL, at most 4 KiB; empty: all messages.
	Filter string
}

// Limits of the forwards of a queue.
const (
	maxForwards    = 16
	maxFilterBytes = 4 << 10
)

// SetForwards replaces the forwards of a queue, up to 16, each to another queue; none ends them. Messages that are
// there already stay as they are. The call can be made again after ErrOutcomeUnknown with the Request that it was
// given, if any. Errors: ErrQueueNotFound, also for one of To; ErrInvalid for a filter that is none, and for a queue
// that would be forwarded to and forward itself; ErrRefused while one of the nodes is of release 0.1.0; ErrUnavailable.
func (c *Client) SetForwards(ctx context.Context, queue string, forwards []Forward, as ...*Request) (Queue, error) {
	if err := checkName("queue", queue); err != nil {
		return Queue{}, err
	}
	if len(forwards) > maxForwards {
		return Queue{}, fmt.Errorf("%w: %d forwards, up to %d are possible", ErrInvalid, len(forwards), maxForwards)
	}
	req := &pb.SetForwardsRequest{Queue: queue}
	for _, f := range forwards {
		if err := checkName("queue", f.To); err != nil {
			return Queue{}, err
		}
		if len(f.Filter) > maxFilterBytes || !utf8.ValidString(f.Filter) {
			return Queue{}, fmt.Errorf("%w: the filter of the forward to %s has up to %d bytes of UTF-8, this has %d",
				ErrInvalid, f.To, maxFilterBytes, len(f.Filter))
		}
		req.Forwards = append(req.Forwards, &pb.Forward{To: f.To, Move: f.Move, Filter: f.Filter})
	}
	resp, err := change(ctx, c, "forwards of queue "+queue, req, as, pb.QueueServiceClient.SetForwards)
	return queueFromProto(resp.GetQueue()), err
}
