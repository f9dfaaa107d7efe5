// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/mutate"
)

// doubt is whether a request may have been committed although no node has said so (INV-10). It belongs to the request,
// not to one call that sends it: what a call did not learn, the next one does not know either. Only an answer for
// exactly the request's producer, epoch and sequence ends it; that a node refuses a repetition is none, unless the log
// has the refusal.
type doubt struct{ unknown bool }

// unanswered takes note that an attempt ended without an answer.
func (d *doubt) unanswered() { d.unknown = true }

// answered takes note that a node has answered for the request itself.
func (d *doubt) answered() { d.unknown = false }

// refused makes the error of a request that a node refused for good, or refuses for now.
func (d *doubt) refused(op string, e *Error) error {
	if e.settled {
		d.answered()
	}
	err := fmt.Errorf("%s: %w", op, e)
	switch {
	case !d.unknown, mutate.Off("INV-10-refused-repetition-is-believed"):
		return err
	case e.outcomeLost():
		return fmt.Errorf("%w; %w; %w", err, ErrOutcomeLost, ErrOutcomeUnknown)
	default:
		// The node may refuse before it looks at the log, in which an attempt before this one may still be on its way.
		return fmt.Errorf("%w; %w", err, ErrOutcomeUnknown)
	}
}

// lane is the identity of one producer that has one request at a time under way, so that its sequences are committed in
// order. A client has as many as requests other than publishes were ever under way at once.
type lane struct {
	id   string
	next uint64
}

// identity is what makes one request safe to send again: the same producer and sequence for as long as its outcome is
// in doubt, over any number of calls. The zero identity is that of a request that was never sent.
type identity struct {
	lane     *lane
	sequence uint64
	doubt    doubt
	lost     error // why the outcome can never be learned; nothing is sent any more
}

// take makes the next sequence of a lane the request's.
func (id *identity) take(l *lane) {
	id.lane, id.sequence = l, l.next
	l.next++
}

// inDoubt tells whether the request may have been committed although no node has said so.
func (id *identity) inDoubt() bool { return id.doubt.unknown }

// doAs is do for a request that changes something. fn gets the producer that it is to be sent under.
func (c *Client) doAs(
	ctx context.Context, op string, id *identity, fn func(context.Context, *grpc.ClientConn, *pb.Producer) error,
) error {
	if id.lost != nil {
		return id.lost
	}
	if mutate.Off("INV-10-doubt-ends-with-the-call") {
		id.doubt.answered()
	}
	err := c.attemptsAs(ctx, op, id, fn)
	var e *Error
	if errors.As(err, &e) && e.forgotten() && (!id.inDoubt() || mutate.Off("INV-10-forgotten-in-doubt-begins-anew")) {
		// The lane was idle for too long. Nothing was committed, so the request may go under another identity: a new
		// one, since the free lanes may have been idle for as long.
		*id = identity{}
		id.take(newLane())
		err = c.attemptsAs(ctx, op, id, fn)
	}
	if id.inDoubt() {
		if errors.Is(err, ErrOutcomeLost) {
			id.lost = err
		}
		return err // the lane stays with the request, which may be sent again
	}
	c.returnLane(id.lane)
	id.lane = nil
	return err
}

// attemptsAs sends a request under its identity until it is answered.
func (c *Client) attemptsAs(
	ctx context.Context, op string, id *identity, fn func(context.Context, *grpc.ClientConn, *pb.Producer) error,
) error {
	if id.lane == nil {
		id.take(c.takeLane())
	}
	return c.do(ctx, op, &id.doubt, func(ctx context.Context, cc *grpc.ClientConn) error {
		return fn(ctx, cc, &pb.Producer{Id: id.lane.id, Epoch: 1, Sequence: id.sequence, Retry: id.inDoubt()})
	})
}

func (c *Client) takeLane() *lane {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.lanes); n > 0 {
		l := c.lanes[n-1]
		c.lanes = c.lanes[:n-1]
		return l
	}
	return newLane()
}

func newLane() *lane { return &lane{id: uuid.NewString(), next: 1} }

func (c *Client) returnLane(l *lane) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lanes = append(c.lanes, l)
}
