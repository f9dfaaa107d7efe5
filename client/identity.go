// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client/internal/link"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// attempts records whether a request may have been committed although no node has reported its result (INV-10), over
// all calls that send the request. Only a response for exactly the request's producer, epoch and sequence resets
// unknown. A refused retry does not reset unknown, unless the refusal is recorded in the log.
type attempts struct {
	unknown bool
	// check returns an error if the request must not be sent to a target. If check is nil, the request can be sent to
	// every target.
	check func(*target) error
}

// allow returns an error if the request must not be sent to t.
func (a *attempts) allow(op string, t *target) error {
	if a.check == nil {
		return nil
	}
	err := a.check(t)
	switch {
	case err == nil:
		return nil
	case a.unknown:
		return fmt.Errorf("%s: %w; %w; %w", op, err, ErrOutcomeLost, ErrOutcomeUnknown)
	default:
		return fmt.Errorf("%s: %w", op, err)
	}
}

func (a *attempts) unanswered() { a.unknown = true }

func (a *attempts) answered() { a.unknown = false }

func (a *attempts) refused(op string, e *Error) error {
	if e.settled {
		a.answered()
	}
	err := link.Wrap(op, e, e.Message)
	switch {
	case !a.unknown:
		return err
	case e.outcomeLost():
		return fmt.Errorf("%w; %w; %w", err, ErrOutcomeLost, ErrOutcomeUnknown)
	default:
		// The node may refuse before it checks the log, and an earlier attempt may still be in flight.
		return fmt.Errorf("%w; %w", err, ErrOutcomeUnknown)
	}
}

// sequencer is a producer identity with one outstanding request at a time, so that its sequences are committed in
// order. A client creates a sequencer if all others are in use. Publishes do not use sequencers.
type sequencer struct {
	id   string
	next uint64
}

// identity makes retries of one request idempotent, over any number of calls: while the outcome is unknown, all
// retries have the same producer and sequence. The zero identity belongs to a request that was never sent.
type identity struct {
	sequencer *sequencer
	sequence  uint64
	attempts  attempts
	lost      error // why the outcome can never be determined; nothing is sent after that
}

func (id *identity) take(s *sequencer) {
	id.sequencer, id.sequence = s, s.next
	s.next++
}

func (id *identity) OutcomeUnknown() bool { return id.attempts.unknown }

// doAs is like do, for a request that changes state. fn receives the producer identity to send.
func (c *Client) doAs(
	ctx context.Context, op string, id *identity, fn func(context.Context, *grpc.ClientConn, *pb.Producer) error,
) error {
	if id.lost != nil {
		return id.lost
	}
	err := c.attemptsAs(ctx, op, id, fn)
	var e *Error
	if errors.As(err, &e) && e.forgotten() && !id.OutcomeUnknown() {
		// The node has evicted the state of the sequencer, which was idle for too long. Nothing was committed, so the
		// request can use a new sequencer. The state of other idle sequencers may have been evicted as well.
		*id = identity{attempts: attempts{check: id.attempts.check}}
		id.take(newSequencer())
		err = c.attemptsAs(ctx, op, id, fn)
	}
	if id.OutcomeUnknown() {
		if errors.Is(err, ErrOutcomeLost) {
			id.lost = err
		}
		return err // the sequencer remains assigned to the request, which may be retried
	}
	c.returnSequencer(id.sequencer)
	id.sequencer = nil
	return err
}

func (c *Client) attemptsAs(
	ctx context.Context, op string, id *identity, fn func(context.Context, *grpc.ClientConn, *pb.Producer) error,
) error {
	if id.sequencer == nil {
		id.take(c.takeSequencer())
	}
	return c.do(ctx, op, &id.attempts, func(ctx context.Context, cc *grpc.ClientConn) error {
		return fn(ctx, cc, &pb.Producer{Id: id.sequencer.id, Epoch: 1, Sequence: id.sequence, Retry: id.OutcomeUnknown()})
	})
}

func (c *Client) takeSequencer() *sequencer {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.sequencers); n > 0 {
		s := c.sequencers[n-1]
		c.sequencers = c.sequencers[:n-1]
		return s
	}
	return newSequencer()
}

func newSequencer() *sequencer { return &sequencer{id: uuid.NewString(), next: 1} }

func (c *Client) returnSequencer(s *sequencer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sequencers = append(c.sequencers, s)
}
