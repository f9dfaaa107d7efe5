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
// all calls that send the request. A refused retry does not reset unknown, unless the refusal is recorded in the log.
type attempts struct {
	unknown bool
	// check returns an error if the request must not be sent to a target, or to any if the target is nil. If check is nil,
	// the request can be sent to every target.
	check func(*target) error
	// pinned means that only the first pair can execute the request.
	pinned bool
	// reads means that the request changes no state, so that its outcome is never unknown.
	reads bool
	// move prepares the request for a pair, under another identity. It is nil if the request has no producer identity;
	// such a request may be executed more than once.
	move func(to *pairConn)
}

// allow returns an error if the request must not be sent to t, or to any target if t is nil.
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

// renew replaces the identity of a request after a temporary refusal that applies to all attempts under its sequence.
func (a *attempts) renew(pair *pairConn, e *Error) {
	if e.settled && e.undirected() && a.move != nil {
		a.answered()
		a.move(pair)
	}
}

func (a *attempts) unanswered() { a.unknown = !a.reads }

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
// order. It belongs to one pair. Publishes do not use sequencers.
type sequencer struct {
	id   string
	next uint64
}

// identity makes retries of one request idempotent, over any number of calls. While the outcome is unknown, all retries
// have the same producer and sequence, and are sent to the same pair. The zero identity belongs to a request that was
// never sent.
type identity struct {
	pair      *pairConn
	sequencer *sequencer
	sequence  uint64
	attempts  attempts
	lost      error // why the outcome can never be determined; nothing is sent after that
}

func (id *identity) take(pair *pairConn, s *sequencer) {
	id.pair, id.sequencer, id.sequence = pair, s, s.next
	s.next++
}

func (id *identity) OutcomeUnknown() bool { return id.attempts.unknown }

// moveTo replaces the producer identity with one of a pair. The caller ensures that no attempt under the current
// identity was or will be committed.
func (id *identity) moveTo(pair *pairConn) {
	id.pair.returnSequencer(id.sequencer)
	id.take(pair, pair.takeSequencer())
}

// doAs is like do, for a request that changes state. fn receives the producer identity to send. After NOT_OWNER, the
// request is sent to the owner under another identity, because the sequences of one pair would have gaps at another. If
// an earlier attempt has no response, NOT_OWNER must be settled. Otherwise, that attempt may have been committed by the
// first pair: the outcome is unknown, and retries are sent to the first pair.
func (c *Client) doAs(
	ctx context.Context, op string, at *pairConn, id *identity,
	fn func(context.Context, *grpc.ClientConn, *pb.Producer) error,
) error {
	if id.lost != nil {
		return id.lost
	}
	if id.sequencer == nil {
		id.take(at, at.takeSequencer())
	}
	id.attempts.move = id.moveTo
	err := c.attemptsAs(ctx, op, id, fn)
	var e *Error
	if errors.As(err, &e) && e.forgotten() && !id.OutcomeUnknown() {
		// The node has evicted the state of the sequencer, which was idle for too long. Nothing was committed, so the
		// request can use a new sequencer. The state of other idle sequencers may have been evicted as well.
		*id = identity{pair: id.pair, attempts: id.attempts}
		id.take(id.pair, newSequencer())
		err = c.attemptsAs(ctx, op, id, fn)
	}
	if id.OutcomeUnknown() {
		if errors.Is(err, ErrOutcomeLost) {
			id.lost = err
		}
		return err // the sequencer remains assigned to the request, which may be retried
	}
	id.pair.returnSequencer(id.sequencer)
	id.sequencer = nil
	return err
}

func (c *Client) attemptsAs(
	ctx context.Context, op string, id *identity, fn func(context.Context, *grpc.ClientConn, *pb.Producer) error,
) error {
	return c.do(ctx, op, id.pair, &id.attempts, func(ctx context.Context, cc *grpc.ClientConn) error {
		return fn(ctx, cc, &pb.Producer{Id: id.sequencer.id, Epoch: 1, Sequence: id.sequence, Retry: id.OutcomeUnknown()})
	})
}

func newSequencer() *sequencer { return &sequencer{id: uuid.NewString(), next: 1} }
