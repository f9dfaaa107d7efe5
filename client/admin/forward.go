// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Forward is a queue's forwarding rule. Messages that match Filter are also published to another queue, in the same
// transaction. Forwarded messages, dead letters and replayed messages are not forwarded.
type Forward struct {
	// To is the target queue. It must not have forwards, and cannot be deleted while it is the target of a forward.
	// While the target is full and rejects publishes, a publish with a message for it is rejected as a whole with
	// [client.ErrLimit].
	To string
	// Move publishes the messages to the target queue only. The Receipt contains the sequences that the messages would
	// have had in the source queue.
	Move bool
	// Filter, if not empty, is a CEL expression of at most 4 KiB that messages must match.
	Filter string
}

const (
	maxForwards    = 16
	maxFilterBytes = 4 << 10
)

// SetForwards replaces the forwards of a queue: up to 16, each with a different target. Stored messages are not
// affected. Errors include [client.ErrQueueNotFound], also for a target; [client.ErrInvalid] for an invalid filter,
// and for a chain of forwards; [client.ErrRefused] while one of the nodes runs release 0.1.0.
func (c *Client) SetForwards(ctx context.Context, queue string, forwards []Forward) (Queue, error) {
	if err := checkName("queue", queue); err != nil {
		return Queue{}, err
	}
	if len(forwards) > maxForwards {
		return Queue{}, fmt.Errorf("%w: %d forwards; the maximum is %d", client.ErrInvalid, len(forwards), maxForwards)
	}
	req := &pb.SetForwardsRequest{Queue: queue}
	for _, f := range forwards {
		if err := checkName("queue", f.To); err != nil {
			return Queue{}, err
		}
		if len(f.Filter) > maxFilterBytes || !utf8.ValidString(f.Filter) {
			return Queue{}, fmt.Errorf("%w: the filter of the forward to %s must have at most %d bytes of UTF-8, not %d",
				client.ErrInvalid, f.To, maxFilterBytes, len(f.Filter))
		}
		req.Forwards = append(req.Forwards, &pb.Forward{To: f.To, Move: f.Move, Filter: f.Filter})
	}
	return c.changeEach(ctx, queue, func(c *Client, at target) (*pb.Queue, error) {
		r := proto.CloneOf(req)
		r.Queue = at.name
		resp, err := change(ctx, c, "forwards of queue "+at.name, r, pb.QueueServiceClient.SetForwards)
		return resp.GetQueue(), err
	})
}
