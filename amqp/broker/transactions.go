// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Conditions of transactions (4.5.8).
const (
	unknownID          wire.Symbol = "amqp:transaction:unknown-id"
	transactionRolled  wire.Symbol = "amqp:transaction:rollback"
	transactionTimeout wire.Symbol = "amqp:transaction:timeout"
)

const (
	// maxTransactions bounds those of a connection that are open.
	maxTransactions = 1000
	// maxTransactionBytes bounds what the open ones of a connection publish together.
	maxTransactionBytes = 64 << 20
	// maxOperations is what a Commit takes.
	maxOperations = 1000
	// commitLimit is how long the outcome of a commit is asked for while the node cannot tell it.
	commitLimit = 30 * time.Second
)

// transactions are those of a connection that are open. The zero value has none. All is guarded by conn.mu.
type transactions struct {
	open  map[uint64]*transaction
	last  uint64
	bytes int
}

// transaction is what a client does in one.
type transaction struct {
	all       *transactions
	id        uint64
	session   *session.Session // of the coordinator link that has declared it
	accepted  *wire.TransactionalState
	publishes []*pb.PublishOperation
	outcomes  []outcome
	bytes     int
	tooMuch   *wire.Error // it can only be rolled back
}

// outcome is what a client says of messages within a transaction.
type outcome struct {
	consumer  *consumer
	state     wire.DeliveryState
	sequences []uint64
}

// declare opens a transaction.
func (t *transactions) declare(s *session.Session) (*transaction, *wire.Error) {
	if len(t.open) >= maxTransactions {
		return nil, session.Errorf(session.ResourceLimitExceeded, "the connection has %d open transactions", len(t.open))
	}
	if t.last == 0 { // an id is of no use on another connection, where a client may repeat it
		t.last = rand.Uint64() >> 1 //nolint:gosec // different is enough
	}
	t.last++
	one := &transaction{all: t, id: t.last, session: s}
	one.accepted = &wire.TransactionalState{TxnID: binary.BigEndian.AppendUint64(nil, t.last), Outcome: wire.Accepted{}}
	if t.open == nil {
		t.open = make(map[uint64]*transaction)
	}
	t.open[t.last] = one
	return one, nil
}

// find returns an open transaction.
func (t *transactions) find(id []byte) (*transaction, *wire.Error) {
	if len(id) == 8 {
		if one := t.open[binary.BigEndian.Uint64(id)]; one != nil {
			return one, nil
		}
	}
	return nil, session.Errorf(unknownID, "there is no open transaction %x", id)
}

// close takes a transaction out.
func (t *transactions) close(one *transaction) {
	delete(t.open, one.id)
	t.bytes -= one.bytes
}

// end rolls back all transactions that were declared in a session.
func (t *transactions) end(s *session.Session) {
	for _, one := range t.open {
		if one.session == s {
			one.rollback()
		}
	}
}

// publish adds a message.
func (t *transaction) publish(queue string, m *pb.Message, bytes int) *wire.Error {
	if t.all.bytes+bytes > maxTransactionBytes {
		t.tooMuch = session.Errorf(session.ResourceLimitExceeded, "the open transactions of a connection may publish %d "+
			"bytes: commit more often", maxTransactionBytes)
		return t.tooMuch
	}
	t.all.bytes += bytes
	t.bytes += bytes
	if n := len(t.publishes); n > 0 && t.publishes[n-1].GetQueue() == queue {
		t.publishes[n-1].Messages = append(t.publishes[n-1].Messages, m)
		return nil
	}
	if len(t.publishes) == maxOperations/2 {
		t.tooMuch = session.Errorf(session.ResourceLimitExceeded, "a transaction may change between queues %d times: "+
			"commit more often", maxOperations/2)
		return t.tooMuch
	}
	t.publishes = append(t.publishes, &pb.PublishOperation{Queue: queue, Messages: []*pb.Message{m}})
	return nil
}

// disposedIn notes outcomes within a transaction. mu is held.
func (s *consumer) disposedIn(state *wire.TransactionalState, e *session.Disposed) {
	t, why := s.c.txns.find(state.TxnID)
	if why != nil {
		s.link.Detach(true, why)
		s.finish()
		return
	}
	o := state.Outcome
	if o == nil {
		o = wire.Accepted{}
	}
	t.outcomes = append(t.outcomes, outcome{consumer: s, state: o, sequences: append([]uint64(nil), e.Refs...)})
	if !e.Settled { // 4.4.4.1: it is settled with the transaction; that the client sees its outcome is enough here
		for i := range e.Refs {
			s.link.Settle(e.First+uint32(i), &wire.TransactionalState{TxnID: t.accepted.TxnID, Outcome: o})
		}
	}
}

// rollback gives back what was consumed, and forgets what was published. mu is held.
func (t *transaction) rollback() {
	t.all.close(t)
	for _, o := range t.outcomes {
		o.consumer.answer(&wire.Modified{DeliveryFailed: true}, o.sequences)
		o.consumer.signal()
	}
}

// operations are what a commit does, and whether it does anything. mu is held.
func (t *transaction) operations() (ops []*pb.Operation) {
	for _, p := range t.publishes {
		ops = append(ops, &pb.Operation{Kind: &pb.Operation_Publish{Publish: p}})
	}
	acks := make(map[*consumer]*pb.AckOperation)
	for _, o := range t.outcomes {
		if !isAccepted(o.state) {
			continue
		}
		ack := acks[o.consumer]
		if ack == nil {
			ack = &pb.AckOperation{
				Queue: o.consumer.queue, Subscription: o.consumer.subscription, QueueId: o.consumer.queueID, Required: true,
			}
			acks[o.consumer] = ack
			ops = append(ops, &pb.Operation{Kind: &pb.Operation_Ack{Ack: ack}})
		}
		list := ranges(ack.Ranges)
		for _, sequence := range o.sequences {
			list.add(sequence)
		}
		ack.Ranges = list
	}
	return ops
}

func isAccepted(state wire.DeliveryState) bool {
	switch state.(type) {
	case wire.Accepted, *wire.Accepted:
		return true
	}
	return false
}

// committed carries out what is no part of the Commit: outcomes that give messages back or up. mu is held.
func (t *transaction) committed() {
	for _, o := range t.outcomes {
		if !isAccepted(o.state) {
			o.consumer.answer(o.state, o.sequences)
			o.consumer.signal()
		}
	}
}

// commit carries out a transaction, and asks until it is known what has become of it. An error is one of this node, or
// nothing was stored.
func (c *conn) commit(ops []*pb.Operation) *wire.Error {
	ctx, cancel := context.WithTimeout(c.calls, commitLimit)
	defer cancel()
	req := &pb.CommitRequest{Operations: ops, Producer: &pb.Producer{Id: uuid.NewString(), Epoch: 1, Sequence: 1}}
	pause := firstPause
	for {
		_, err := c.queues.Commit(ctx, req)
		if err == nil {
			return nil
		}
		f := failed(err)
		switch {
		case f.notActive():
			c.lost("this node is not the active one any more")
			return session.Errorf(session.ConnectionForced, "the outcome of the transaction is not known: %s", f.text)
		case !f.again() && (f.settled || !req.GetProducer().GetRetry()) && f.reason != "":
			why := f.toAMQP()
			if why.Condition == session.PreconditionFailed || why.Condition == session.ResourceLocked {
				why.Condition = transactionRolled
			}
			return why
		case !f.again() || ctx.Err() != nil:
			c.lost("the outcome of a transaction could not be found out")
			return session.Errorf(session.InternalError, "the outcome of the transaction is not known: %s", f.text)
		}
		if f.reason != "BLOCKED" && f.reason != "UNCHECKED" {
			req.Producer.Retry = true // that attempt may have been carried out
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, longestPause)
	}
}
