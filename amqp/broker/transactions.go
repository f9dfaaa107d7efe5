// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"slices"
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
	// maxOperations, maxBatchMessages, maxAckRanges and maxTaken are what a Commit takes: operations, messages of a
	// publish, ranges of an acknowledgement, and acknowledged messages.
	maxOperations    = 1000
	maxBatchMessages = 10_000
	maxAckRanges     = 65_536
	maxTaken         = 262_144
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
	publishes []*published
	byQueue   map[string]*published
	outcomes  []outcome
	taken     int
	bytes     int
	tooMuch   *wire.Error // it can only be rolled back
}

// published are the messages of a transaction to one queue, in their order.
type published struct {
	queue    string
	messages []*pb.Message
	topic    bool // the kind of queue to create if there is none
	deleted  bool // if there is none, it was deleted, and is not created
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

// acknowledges returns the messages of a consumer that open transactions acknowledge.
func (t *transactions) acknowledges(s *consumer) []*pb.SequenceRange {
	var sequences []uint64
	for _, one := range t.open {
		for _, o := range one.outcomes {
			if o.consumer == s {
				sequences = append(sequences, o.sequences...)
			}
		}
	}
	slices.Sort(sequences)
	var list ranges
	for _, sequence := range sequences {
		list.add(sequence)
	}
	if len(list) > maxRanges { // messages between them count as delivered, too
		list = ranges{{First: list[0].GetFirst(), Last: list[len(list)-1].GetLast()}}
	}
	return list
}

// publish adds a message of a link. limit is how many bytes the open transactions of the connection may have.
func (t *transaction) publish(p *publisher, queue string, m *pb.Message, bytes, limit int) *wire.Error {
	if t.all.bytes+bytes > limit {
		t.tooMuch = session.Errorf(session.ResourceLimitExceeded, "the open transactions of a connection have more than "+
			"%d bytes (limits.transaction-bytes): commit more often", limit)
		return t.tooMuch
	}
	t.all.bytes += bytes
	t.bytes += bytes
	of := t.byQueue[queue]
	if of == nil {
		if len(t.byQueue) == maxOperations {
			t.tooMuch = tooManyOperations()
			return t.tooMuch
		}
		of = &published{queue: queue, topic: p.topic}
		if t.byQueue == nil {
			t.byQueue = make(map[string]*published)
		}
		t.byQueue[queue] = of
		t.publishes = append(t.publishes, of)
	}
	of.messages = append(of.messages, m)
	of.deleted = of.deleted || p.deleted()
	return nil
}

func tooManyOperations() *wire.Error {
	return session.Errorf(session.ResourceLimitExceeded, "a transaction has more than %d operations, which are one for "+
		"each %d messages to a queue and one for each consumer: commit more often", maxOperations, maxBatchMessages)
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
	if isAccepted(o) {
		if t.taken += len(e.Refs); t.taken > maxTaken {
			t.tooMuch = session.Errorf(session.ResourceLimitExceeded, "a transaction acknowledges more than %d messages: "+
				"commit more often", maxTaken)
		}
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

// operations are what a commit does. mu is held.
func (t *transaction) operations() (ops []*pb.Operation) {
	for _, p := range t.publishes {
		for batch := range slices.Chunk(p.messages, maxBatchMessages) {
			ops = append(ops, &pb.Operation{Kind: &pb.Operation_Publish{
				Publish: &pb.PublishOperation{Queue: p.queue, Messages: batch},
			}})
		}
	}
	var consumers []*consumer
	taken := make(map[*consumer][]uint64)
	for _, o := range t.outcomes {
		if !isAccepted(o.state) {
			continue
		}
		if taken[o.consumer] == nil {
			consumers = append(consumers, o.consumer)
		}
		taken[o.consumer] = append(taken[o.consumer], o.sequences...)
	}
	for _, c := range consumers {
		slices.Sort(taken[c])
		var list ranges
		for _, sequence := range taken[c] {
			list.add(sequence)
		}
		for batch := range slices.Chunk(list, maxAckRanges) {
			ops = append(ops, &pb.Operation{Kind: &pb.Operation_Ack{Ack: &pb.AckOperation{
				Queue: c.queue, Subscription: c.subscription, QueueId: c.queueID, Required: true, Ranges: batch,
			}}})
		}
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

// createMissing creates the queues that a transaction publishes to and that are not there, if that is wanted. It
// returns false if none was created.
func (c *conn) createMissing(ctx context.Context, publishes []*published) (created bool, err error) {
	if !c.server.o.AutoCreate() {
		return false, nil
	}
	for _, p := range publishes {
		if p.deleted {
			continue
		}
		if _, err := c.queues.GetQueue(ctx, &pb.GetQueueRequest{Name: p.queue}); err == nil ||
			failed(err).reason != "QUEUE_NOT_FOUND" {
			continue
		}
		if err := c.createQueue(ctx, p.queue, p.topic); err != nil {
			return created, err
		}
		created = true
	}
	return created, nil
}

// commit carries out a transaction. Queues that are not there are created on demand, and then it is carried out again:
// nothing of it was stored. With an error nothing was stored; known is false if that cannot be found out, and the
// connection ends then.
func (c *conn) commit(t *transaction, ops []*pb.Operation) (why *wire.Error, known bool) {
	ctx, cancel := context.WithTimeout(c.calls, commitLimit)
	defer cancel()
	f, known := c.tryCommit(ctx, ops)
	if f == nil {
		return nil, known
	}
	if f.reason == "QUEUE_NOT_FOUND" {
		created, err := c.createMissing(ctx, t.publishes)
		if err != nil {
			return refusal(err), true
		}
		if created {
			if f, known = c.tryCommit(ctx, ops); f == nil {
				return nil, known
			}
		}
	}
	return f.ofTransaction(), true
}

// tryCommit commits, and asks until the outcome is known. After a refusal it is certain that nothing was stored.
func (c *conn) tryCommit(ctx context.Context, ops []*pb.Operation) (refused *failure, known bool) {
	req := &pb.CommitRequest{Operations: ops, Producer: &pb.Producer{Id: uuid.NewString(), Epoch: 1, Sequence: 1}}
	pause := firstPause
	for {
		_, err := c.queues.Commit(ctx, req)
		if err == nil {
			return nil, true
		}
		f := failed(err)
		switch {
		case f.notActive():
			c.lost("this node is not the active one any more")
			return nil, false
		case !f.again() && (f.settled || !req.GetProducer().GetRetry()) && f.reason != "":
			return &f, true
		case !f.again() || ctx.Err() != nil:
			c.lost("the outcome of a transaction could not be found out")
			return nil, false //nolint:nilerr // the connection ends, and the client gets no outcome
		}
		if f.reason != "BLOCKED" && f.reason != "AUTH_UNAVAILABLE" {
			req.Producer.Retry = true // that attempt may have been carried out
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		pause = min(2*pause, longestPause)
	}
}

// ofTransaction is the error of a transaction that was refused.
func (f *failure) ofTransaction() *wire.Error {
	why := f.toAMQP()
	switch {
	case why.Condition == session.PreconditionFailed || why.Condition == session.ResourceLocked:
		why.Condition = transactionRolled
	case f.reason == "TOO_LARGE":
		why.Condition = session.ResourceLimitExceeded
	}
	return why
}
