// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Pause describes the pause of a queue or of a subscription.
type Pause struct {
	// Publish reports whether publishes and forwards to the queue fail with [client.ErrRefused]. It is always false
	// for a subscription.
	Publish bool
	// Deliver reports whether delivery is paused: consumers receive no messages.
	Deliver bool
	// At is the time of the last call of [Client.PauseQueue], by the clock of the active node.
	At time.Time
	// By is the principal that called PauseQueue; empty without authentication. Reason is PauseOptions.Reason.
	By, Reason string
}

// PauseOptions are the options of [Client.PauseQueue] and [Client.ResumeQueue]. The zero value selects publishing and
// delivery of the queue.
type PauseOptions struct {
	// Subscription selects one subscription instead of the queue.
	Subscription string
	// Publish and Deliver select publishing and delivery. If neither is set, both are selected, or only delivery if
	// Subscription is set.
	Publish, Deliver bool
	// Reason is shown to other operators, at most 1,024 bytes of UTF-8. ResumeQueue ignores it.
	Reason string
}

const maxReasonBytes = 1024

// PauseQueue pauses publishing to a queue, its delivery or both, or the delivery of one subscription. The pause
// survives failovers and restarts; [Client.ResumeQueue] ends it. After PauseQueue returns, consumers of the paused
// subscriptions receive no further messages. They can acknowledge the messages in flight. Errors include
// [client.ErrQueueNotFound]; [client.ErrSubscriptionNotFound]; [client.ErrInvalid]; [client.ErrRefused] while one of
// the nodes runs release 0.1.0.
func (c *Client) PauseQueue(ctx context.Context, queue string, o PauseOptions) (Queue, error) {
	if len(o.Reason) > maxReasonBytes || !utf8.ValidString(o.Reason) {
		return Queue{}, fmt.Errorf("%w: the reason must have at most %d bytes of UTF-8, not %d", client.ErrInvalid,
			maxReasonBytes, len(o.Reason))
	}
	return c.changeEach(ctx, queue, func(c *Client, at target) (*pb.Queue, error) {
		resp, err := change(ctx, c, "pause queue "+at.name, &pb.PauseQueueRequest{
			Queue: at.name, Subscription: o.Subscription, Publish: o.Publish, Deliver: o.Deliver, Reason: o.Reason,
		}, pb.QueueServiceClient.PauseQueue)
		return resp.GetQueue(), err
	})
}

// ResumeQueue ends a pause, in whole or in part. It has no effect on a queue that is not paused. Subscriptions that
// were paused separately stay paused. Errors are those of [Client.PauseQueue].
func (c *Client) ResumeQueue(ctx context.Context, queue string, o PauseOptions) (Queue, error) {
	return c.changeEach(ctx, queue, func(c *Client, at target) (*pb.Queue, error) {
		resp, err := change(ctx, c, "resume queue "+at.name, &pb.ResumeQueueRequest{
			Queue: at.name, Subscription: o.Subscription, Publish: o.Publish, Deliver: o.Deliver,
		}, pb.QueueServiceClient.ResumeQueue)
		return resp.GetQueue(), err
	})
}

func pauseFromProto(p *pb.QueuePause) *Pause {
	if p == nil {
		return nil
	}
	return &Pause{
		Publish: p.GetPublish(), Deliver: p.GetDeliver(), At: p.GetPausedAt().AsTime(), By: p.GetPausedBy(),
		Reason: p.GetReason(),
	}
}
