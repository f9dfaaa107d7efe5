// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Position is the position from which a subscription reads. The zero value is invalid.
type Position struct {
	position pb.StartPosition
	sequence uint64
	time     time.Time
}

// Earliest returns the position of the oldest stored message.
func Earliest() Position { return Position{position: pb.StartPosition_START_POSITION_EARLIEST} }

// Latest returns the position of the next message to be published.
func Latest() Position { return Position{position: pb.StartPosition_START_POSITION_LATEST} }

// AtSequence returns the position of the first stored message with this sequence or a higher one. The sequence must be
// at least 1, and at most the NextSequence of the queue.
func AtSequence(sequence uint64) Position { return Position{sequence: sequence} }

// Since returns the position of the first stored message that was published at t or later, by the clocks of the nodes
// that accepted the messages. t must not be in the future.
func Since(t time.Time) Position { return Position{time: t} }

// SeekResult is the new position of a subscription.
type SeekResult struct {
	// Sequence is the sequence of the next message to be delivered, or the queue's NextSequence if no such message is
	// stored. It is 0 for a partitioned queue.
	Sequence uint64
	// Backlog is the number of messages that are not acknowledged.
	Backlog uint64
}

// Seek moves a subscription to a position. An empty subscription means client.DefaultSubscription. Messages below the
// position are acknowledged. Stored messages from the position on are delivered, even if they were delivered before.
//
// Attached consumers of package client continue at the new position. Their earlier deliveries can no longer be
// answered. An acknowledgement that is in flight during the Seek may apply to a redelivered message; to avoid this,
// close the consumers first.
//
// A subscription of a partitioned queue can be moved to [Earliest], [Latest] or a time ([Since]). A sequence requires
// the name of a partition.
//
// Errors include [client.ErrQueueNotFound], [client.ErrSubscriptionNotFound], [client.ErrInvalid] for a position
// beyond the end or in the future, [client.ErrRefused] while one of the nodes runs release 0.1.0.
func (c *Client) Seek(
	ctx context.Context, queue, subscription string, to Position,
) (SeekResult, error) {
	if err := checkName("queue", queue); err != nil {
		return SeekResult{}, err
	}
	req := &pb.SeekSubscriptionRequest{Queue: queue, Subscription: subscription}
	switch {
	case to.position != pb.StartPosition_START_POSITION_UNSPECIFIED:
		req.To = &pb.SeekSubscriptionRequest_Position{Position: to.position}
	case to.sequence != 0:
		req.To = &pb.SeekSubscriptionRequest_Sequence{Sequence: to.sequence}
	case !to.time.IsZero():
		req.To = &pb.SeekSubscriptionRequest_Time{Time: timestamppb.New(to.time)}
	default:
		return SeekResult{}, fmt.Errorf("%w: no position; sequences start at 1", client.ErrInvalid)
	}
	var result SeekResult
	move := func(c *Client, at target) error {
		r := proto.CloneOf(req)
		r.Queue = at.name
		resp, err := change(ctx, c, "move a subscription of "+at.name, r, pb.QueueServiceClient.SeekSubscription)
		result.Sequence, result.Backlog = resp.GetSequence(), result.Backlog+resp.GetBacklog()
		if at.count > 0 {
			result.Sequence = 0
		}
		return err
	}
	err := error(nil)
	if to.sequence != 0 { // sequences belong to a partition
		err = move(c, target{name: queue})
	} else {
		err = c.forEach(ctx, queue, move)
	}
	return result, err
}
