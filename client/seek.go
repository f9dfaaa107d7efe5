// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Place is where a subscription begins or goes on. The zero value is none.
type Place struct {
	position pb.StartPosition
	sequence uint64
	time     time.Time
}

// Earliest is the oldest message that is stored.
func Earliest() Place { return Place{position: pb.StartPosition_START_POSITION_EARLIEST} }

// Latest is the next message that is published.
func Latest() Place { return Place{position: pb.StartPosition_START_POSITION_LATEST} }

// AtSequence is the first message from a sequence on that is stored: at least 1, and at most the queue's NextSequence.
func AtSequence(sequence uint64) Place { return Place{sequence: sequence} }

// Since is the first message that is stored and was published at t or later, by the clocks of the nodes that accepted
// them. t must not be in the future.
func Since(t time.Time) Place { return Place{time: t} }

// SeekResult is where a subscription goes on.
type SeekResult struct {
	// Sequence of the first message that it will get; the queue's NextSequence if there is none.
	Sequence uint64
	// Backlog is the number of messages that it has not acknowledged now.
	Backlog uint64
}

// Seek moves a subscription ("" means DefaultSubscription): what is below the place is acknowledged, and what is stored
// from there on is delivered, again if it was before. Messages are stored until all subscriptions have acknowledged
// them, and longer if the queue has a retention.
//
// Consumers of this package that are attached go on at the new place by themselves. What they have delivered before
// counts as answered. An acknowledgement that is on its way in the same moment may count for the delivery that is still
// to come: to have all of it delivered again for certain, close the consumers first.
//
// The call can be made again after ErrOutcomeUnknown with the Request that it was given, if any. Errors:
// ErrQueueNotFound, ErrSubscriptionNotFound, ErrInvalid for a place beyond the end or in the future, ErrRefused while
// one of the nodes is of release 0.1.0, ErrUnavailable.
func (c *Client) Seek(
	ctx context.Context, queue, subscription string, to Place, as ...*Request,
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
		return SeekResult{}, fmt.Errorf("%w: no place to move to; sequences begin at 1", ErrInvalid)
	}
	resp, err := change(ctx, c, "move a subscription of "+queue, req, as, pb.QueueServiceClient.SeekSubscription)
	return SeekResult{Sequence: resp.GetSequence(), Backlog: resp.GetBacklog()}, err
}
