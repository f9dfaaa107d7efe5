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
	maxTransactions = 1000             // open transactions per connection
	commitLimit     = 30 * time.Second // maximum time of a commit with its retries

	// Limits of a Commit.
	maxOperations    = 1000
	maxBatchMessages = 10_000  // per publish
	maxAckRanges     = 65_536  // per acknowledgement
	maxTaken         = 262_144 // acknowledged messages
)

// transactions are the open transactions of a connection, guarded by conn.mu.
type transactions struct {
	open  map[uint64]*transaction
	last  uint64
	bytes int
}

type transaction struct {
	all       *transactions
	id        uint64
	session   *session.Session // session of the coordinator link that declared the transaction
	accepted  *wire.TransactionalState
	publishes []*published
	byQueue   map[string]*published
	outcomes  []outcome
	taken     int
	bytes     int
	tooMuch   *wire.Error // limit exceeded: only a rollback is possible
}

type published struct { // messages of a transaction for one queue
	queue    string
	messages []*pb.Message
	topic    bool // type of the queue to create if it does not exist
	deleted  bool // the queue was deleted and is not created again
}

type outcome struct {
	consumer   *consumer
	generation uint64 // of the consumer
	state      wire.DeliveryState
	sequences  []uint64
}

// isCurrent reports whether the deliveries can still be answered. mu is held.
func (o *outcome) isCurrent() bool { return o.generation == o.consumer.generation }

func (t *transactions) declare(s *session.Session) (*transaction, *wire.Error) {
	if len(t.open) >= maxTransactions {
		return nil, session.Errorf(session.ResourceLimitExceeded, "connection has %d open transactions", len(t.open))
	}
	if t.last == 0 { // random start: an ID of another connection must be unknown
		t.last = rand.Uint64() >> 1 //nolint:gosec // the ID need not be secret
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

func (t *transactions) find(id []byte) (*transaction, *wire.Error) {
	if len(id) == 8 {
		if one := t.open[binary.BigEndian.Uint64(id)]; one != nil {
			return one, nil
		}
	}
	return nil, session.Errorf(unknownID, "no open transaction %x", id)
}

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

// acknowledges returns the messages of a consumer that have an outcome in an open transaction.
func (t *transactions) acknowledges(s *consumer) []*pb.SequenceRange {
	var sequences []uint64
	for _, one := range t.open {
		for _, o := range one.outcomes {
			if o.consumer == s && o.isCurrent() {
				sequences = append(sequences, o.sequences...)
			}
		}
	}
	list := rangesOf(sequences)
	if len(list) > maxRanges { // messages in between also count as delivered
		list = ranges{{First: list[0].GetFirst(), Last: list[len(list)-1].GetLast()}}
	}
	return list
}

// publish adds a message. limit is the maximum size of all open transactions of the connection. After an error, only a
// rollback is possible.
func (t *transaction) publish(p *publisher, queue string, m *pb.Message, bytes, limit int) *wire.Error {
	if t.all.bytes+bytes > limit {
		t.tooMuch = session.Errorf(session.ResourceLimitExceeded, "open transactions of the connection exceed "+
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
	return session.Errorf(session.ResourceLimitExceeded, "transaction has more than %d operations: one for "+
		"each %d messages to a queue and one for each consumer: commit more often", maxOperations, maxBatchMessages)
}

// disposedIn records outcomes within a transaction. mu is held.
func (s *consumer) disposedIn(state *wire.TransactionalState, e *session.Disposed) {
	t, reason := s.c.txns.find(state.TxnID)
	if reason != nil {
		s.link.Detach(true, reason)
		s.finish()
		return
	}
	o := state.Outcome
	if o == nil {
		o = wire.Accepted{}
	}
	if isAccepted(o) {
		if t.taken += len(e.Refs); t.taken > maxTaken {
			t.tooMuch = session.Errorf(session.ResourceLimitExceeded, "transaction acknowledges more than %d messages: "+
				"commit more often", maxTaken)
		}
	}
	t.outcomes = append(t.outcomes, outcome{
		consumer: s, generation: s.generation, state: o, sequences: slices.Clone(e.Refs),
	})
	if !e.Settled { // settled here; the outcome takes effect with the transaction (4.4.4)
		for i := range e.Refs {
			s.link.Settle(e.First+uint32(i), &wire.TransactionalState{TxnID: t.accepted.TxnID, Outcome: o})
		}
	}
}

// rollback requeues consumed messages and discards published ones. mu is held.
func (t *transaction) rollback() {
	t.all.close(t)
	for _, o := range t.outcomes {
		if !o.isCurrent() {
			continue // delivered again
		}
		o.consumer.answer(&wire.Modified{DeliveryFailed: true}, o.sequences)
		o.consumer.signal()
	}
}

// operations returns the operations of the Commit. mu is held.
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
		for batch := range slices.Chunk(rangesOf(taken[c]), maxAckRanges) {
			ops = append(ops, &pb.Operation{Kind: &pb.Operation_Ack{Ack: &pb.AckOperation{
				Queue: c.queue, Subscription: c.subscription, QueueId: c.queueID, Required: true, Ranges: batch,
			}}})
		}
	}
	return ops
}

func isAccepted(state wire.DeliveryState) bool {
	_, ok := state.(wire.Accepted)
	return ok
}

// committed applies the outcomes other than accepted, which are not part of the Commit. mu is held.
func (t *transaction) committed() {
	for _, o := range t.outcomes {
		if !isAccepted(o.state) && o.isCurrent() {
			o.consumer.answer(o.state, o.sequences)
			o.consumer.signal()
		}
	}
}

// createMissing creates missing queues on demand, and reports whether it created any.
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

// commit commits a transaction. If a queue is missing, nothing was stored: commit creates it on demand and retries.
// known is false if the outcome is unknown or this node is no longer active: the connection ends.
func (c *conn) commit(t *transaction, at *pair, ops []*pb.Operation) (reason *wire.Error, known bool) {
	ctx, cancel := context.WithTimeout(c.calls, commitLimit)
	defer cancel()
	f, known := c.tryCommit(ctx, at, ops)
	if f == nil {
		return nil, known
	}
	if f.reason == "QUEUE_NOT_FOUND" {
		created, err := c.createMissing(ctx, t.publishes)
		if err != nil {
			return refusal(err), true
		}
		if created {
			if f, known = c.tryCommit(ctx, at, ops); f == nil {
				return nil, known
			}
		}
	}
	return f.ofTransaction(), true
}

// tryCommit commits a transaction, with retries, first at the given pair and then at the owner of its queues. If the
// outcome remains unknown or this node is no longer active, known is false and the connection ends.
func (c *conn) tryCommit(ctx context.Context, at *pair, ops []*pb.Operation) (refused *failure, known bool) {
	way := path{at: at}
	req := newCommit(ops)
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		_, err := way.at.queues.Commit(ctx, req)
		if err == nil {
			return nil, true
		}
		f := failed(err)
		certain := f.settled || !req.GetProducer().GetRetry()
		switch {
		case f.notActive() && way.at.own():
			c.lost("this node is no longer active")
			return nil, false
		case f.owner != nil && certain && c.fleet != nil && !acknowledges(ops):
			wait, err := way.follow(c, f.owner)
			if err != nil || !rest(ctx, wait) {
				return &f, true
			}
			req = newCommit(ops) // a producer sends its requests to one pair
			continue
		case !f.again() && certain && f.reason != "":
			return &f, true
		case f.reason == "DIRECTORY_UNAVAILABLE" && certain && ctx.Err() != nil:
			return &f, true
		case !f.again() || ctx.Err() != nil:
			c.lost("unknown outcome of a transaction")
			return nil, false //nolint:nilerr // the connection ends without an outcome
		}
		switch {
		case f.settled: // the refusal applies to all attempts of this request
			req = newCommit(ops)
		case !f.unapplied():
			req.Producer.Retry = true // the attempt may have been committed
		}
		rest(ctx, pause)
	}
}

func newCommit(ops []*pb.Operation) *pb.CommitRequest {
	return &pb.CommitRequest{Operations: ops, Producer: &pb.Producer{Id: uuid.NewString(), Epoch: 1, Sequence: 1}}
}

// acknowledges reports whether a transaction acknowledges messages. They can be acknowledged only at the pair that has
// delivered them.
func acknowledges(ops []*pb.Operation) bool {
	return slices.ContainsFunc(ops, func(o *pb.Operation) bool { return o.GetAck() != nil })
}

// pairOfAcks returns the pair that has delivered the messages that the transaction acknowledges; the pair of this node
// if it acknowledges none. It returns an error if some of the messages were since delivered again, or belong to
// different pairs. mu is held.
func (t *transaction) pairOfAcks(home *pair) (*pair, *wire.Error) {
	var at *pair
	for i := range t.outcomes {
		o := &t.outcomes[i]
		if !isAccepted(o.state) {
			continue
		}
		if !o.isCurrent() {
			return nil, session.Errorf(transactionRolled, "messages of queue %q were delivered again, because the queue "+
				"moved to another pair or its pair had a failover", o.consumer.queue)
		}
		if from := o.consumer.from; at == nil {
			at = from
		} else if at.name != from.name {
			e := session.Errorf(transactionRolled, "queues of the transaction belong to different pairs")
			e.Info = wire.Fields{{Key: wire.Symbol("lockstep:reason"), Value: "CROSS_PAIR"}}
			return nil, e
		}
	}
	if at == nil {
		at = home
	}
	return at, nil
}

func (f *failure) ofTransaction() *wire.Error {
	reason := f.toAMQP()
	switch {
	case reason.Condition == session.PreconditionFailed || reason.Condition == session.ResourceLocked:
		reason.Condition = transactionRolled
	case f.reason == "TOO_LARGE":
		reason.Condition = session.ResourceLimitExceeded
	}
	return reason
}
