// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Txn is a transaction: it collects operations over any number of queues and commits them atomically. It is not safe
// for concurrent use.
//
// With [Txn.Take], the results of each message are published exactly once. This also applies if the message is
// delivered to several consumers, after a failover, and after a Commit with an unknown outcome:
//
//	err := consumer.Run(ctx, func(ctx context.Context, d *client.Delivery) error {
//		_, err := c.Begin().Take(d).Publish("invoices", invoiceOf(d)).Commit(ctx)
//		return err
//	}, 4)
type Txn struct {
	client   *Client
	ops      []*pb.Operation
	acked    []*Delivery
	released []*Delivery
	identity identity // assigned by the first Commit or Prepare, and retained while the outcome is unknown
	ended    bool     // committed, prepared or rolled back
	err      error    // error of the first invalid operation
	late     error    // error of an operation that add has refused; reported once
	xid      string   // XID of a Prepare with an unknown outcome
	sent     txnRequest
}

// TxnResult is the result of a transaction.
type TxnResult struct {
	// LSN is the LSN of the transaction, or, for a pair with sites, its logical number, which is equal at all sites.
	LSN uint64
	// Results contains one element per operation, in the order of the calls.
	Results []OpResult
	// Duplicate reports whether the result is that of an earlier attempt.
	Duplicate bool
}

// OpResult is the result of one operation.
type OpResult struct {
	// FirstSequence is the sequence of the first published message. The other messages have the following sequences,
	// except discarded messages, and messages in other partitions of a partitioned queue.
	FirstSequence uint64
	// Changed is the number of messages changed by an acknowledgement or release; 0 for a publish.
	Changed uint64
	// Discarded is the number of messages that were not stored, as in a [Receipt].
	Discarded int
}

// Begin starts a transaction. Nothing is sent before Commit or Prepare. Messages must not be modified before the
// transaction has ended. Commit or Prepare returns the errors of the methods that add operations.
func (c *Client) Begin() *Txn { return &Txn{client: c} }

// Publish adds messages for one queue. It counts as one operation, and for a partitioned queue, as one operation per
// partition of the messages. TxnResult.Results contains one element in both cases. For a partitioned queue,
// FirstSequence belongs to one of the partitions.
func (t *Txn) Publish(queue string, ms ...Message) *Txn {
	t.fail(checkName("queue", queue))
	for i := range ms {
		t.fail(ms[i].check(t.client.opts.MaxMessageBytes))
	}
	t.add(&pb.Operation{Kind: &pb.Operation_Publish{
		Publish: &pb.PublishOperation{Queue: queue, Messages: messagesToProto(ms)},
	}})
	return t
}

// Take acknowledges deliveries of one subscription, on the condition that none of the messages is already
// acknowledged or reserved by a prepared transaction. If the condition is not met, Commit returns [ErrProcessed]. The
// application must not answer the deliveries in another way. Take counts as one operation. Both nodes must run a
// later release than 0.1.0: an active of release 0.1.0 ignores the condition.
func (t *Txn) Take(ds ...*Delivery) *Txn { return t.ack(true, ds) }

// Ack is like [Txn.Take], without the condition: if another consumer has also processed a message, the results of
// both consumers are stored.
func (t *Txn) Ack(ds ...*Delivery) *Txn { return t.ack(false, ds) }

func (t *Txn) ack(required bool, ds []*Delivery) *Txn {
	queue, sub, ranges, ok := t.ranges(ds)
	if ok && t.add(&pb.Operation{Kind: &pb.Operation_Ack{
		Ack: &pb.AckOperation{
			Queue: queue, Subscription: sub, Ranges: ranges, QueueId: ds[0].consumer.attachedTo(), Required: required,
			SiteEpoch: siteEpoch(ds),
		},
	}}) {
		t.acked = append(t.acked, ds...)
	}
	return t
}

// Release requeues deliveries of one subscription when the transaction commits. It counts as one operation.
func (t *Txn) Release(ds ...*Delivery) *Txn {
	queue, sub, ranges, ok := t.ranges(ds)
	if ok && t.add(&pb.Operation{Kind: &pb.Operation_Release{
		Release: &pb.ReleaseOperation{
			Queue: queue, Subscription: sub, Ranges: ranges,
			QueueId: ds[0].consumer.attachedTo(), SiteEpoch: siteEpoch(ds),
		},
	}}) {
		t.released = append(t.released, ds...)
	}
	return t
}

func (t *Txn) ranges(ds []*Delivery) (queue, sub string, ranges []*pb.SequenceRange, ok bool) {
	if len(ds) == 0 {
		t.fail(fmt.Errorf("%w: no deliveries", ErrInvalid))
		return "", "", nil, false
	}
	sequences := make([]uint64, len(ds))
	for i, d := range ds {
		if d.consumer.queue != ds[0].consumer.queue || d.consumer.subscription != ds[0].consumer.subscription {
			t.fail(fmt.Errorf("%w: deliveries of different subscriptions in one operation; use one for each",
				ErrInvalid))
			return "", "", nil, false
		}
		sequences[i] = d.Sequence
	}
	return ds[0].consumer.queue, ds[0].consumer.subscription, toRanges(sequences), true
}

// add adds an operation, unless the transaction has ended or the outcome of a Commit is unknown. In the latter case,
// a retry must contain the same operations as the first attempt.
func (t *Txn) add(op *pb.Operation) bool {
	if t.identity.OutcomeUnknown() || t.ended {
		t.late = fmt.Errorf("%w: an operation was added after Commit and is not part of the transaction; Commit again "+
			"retries what was sent; use another transaction for new operations", ErrInvalid)
		return false
	}
	t.ops = append(t.ops, op)
	return true
}

// fail records the error of the first invalid operation. While the outcome of a Commit is unknown, it records
// nothing, because the operation is not added.
func (t *Txn) fail(err error) {
	if t.err == nil && !t.identity.OutcomeUnknown() {
		t.err = err
	}
}

// Commit sends the transaction and returns when every in-sync node has stored it, as durably as in
// [Producer.Publish].
//
// After [ErrOutcomeUnknown], call Commit again: it retries the same transaction, which is committed at most once.
// After [ErrOutcomeLost] every later Commit returns the same error without sending anything. Operations added while
// the outcome is unknown are not part of the transaction: the next Commit reports this once and sends nothing.
//
// [ErrProcessed] means that a message of Take was processed elsewhere. If the error does not match ErrOutcomeUnknown,
// Commit has called Rollback. After any other error, call Commit again or Rollback.
//
// If, since a delivery of the transaction, another site was promoted without a planned switch, or another pair became
// the owner of the queue, Commit returns [ErrInvalid], or ErrOutcomeLost after an attempt without a response.
//
// Errors include [ErrQueueNotFound], [ErrSubscriptionNotFound], [ErrProcessed], [ErrLimit], [ErrInvalid],
// [ErrRefused], [ErrOutcomeLost], [ErrUnavailable].
func (t *Txn) Commit(ctx context.Context) (TxnResult, error) {
	if err := t.ready("commit"); err != nil {
		return TxnResult{}, err
	}
	t.identity.attempts.check = t.check()
	if t.xid != "" {
		return TxnResult{}, fmt.Errorf("%w: the outcome of Prepare with xid %q is unknown: call it again",
			ErrInvalid, t.xid)
	}
	resp, err := t.commit(ctx)
	for t.again(err) {
		resp, err = t.commit(ctx)
	}
	if err != nil {
		if errors.Is(err, ErrProcessed) && !t.identity.OutcomeUnknown() {
			t.Rollback()
		}
		return TxnResult{}, err
	}
	t.done(true)
	out := TxnResult{LSN: resp.GetLsn(), Duplicate: resp.GetDuplicate()}
	out.Results = t.sent.results(resp.GetResults())
	return out, nil
}

func (t *Txn) commit(ctx context.Context) (resp *pb.CommitResponse, err error) {
	req := t.commitRequest()
	err = t.client.doAs(ctx, "commit", t.pair(req.ops), &t.identity,
		func(ctx context.Context, cc *grpc.ClientConn, p *pb.Producer) (err error) {
			resp, err = queues(cc).Commit(ctx, &pb.CommitRequest{Operations: req.ops, Producer: p})
			return err
		})
	return resp, err
}

// pair returns the pair that the transaction is sent to. It is the pair of a consumer of its deliveries, or of the
// first queue with a known owner, or the home pair.
func (t *Txn) pair(ops []*pb.Operation) *pairConn {
	for _, d := range slices.Concat(t.acked, t.released) {
		return d.consumer.pair()
	}
	for _, op := range ops {
		if pair, known := t.client.owners.find(op.GetPublish().GetQueue()); known {
			return pair
		}
	}
	return t.client.owners.home
}

// Rollback discards the transaction and requeues its deliveries: unacknowledged messages are redelivered with a higher
// DeliveryCount. It has no effect after a successful Commit or Prepare. It is also safe after [ErrOutcomeUnknown]: if
// the Commit took effect, the messages are acknowledged and not redelivered.
func (t *Txn) Rollback() {
	if t.ended {
		return
	}
	t.ended = true
	for _, d := range slices.Concat(t.acked, t.released) {
		_ = d.Nack() // after an error, the message is redelivered in any case
	}
}

func (t *Txn) ready(op string) error {
	switch {
	case t.ended:
		return fmt.Errorf("%w: the transaction has ended", ErrInvalid)
	case t.late != nil:
		err := fmt.Errorf("%s: %w; %w", op, t.late, ErrOutcomeUnknown)
		t.late = nil
		return err
	case t.err != nil:
		return t.err
	case len(t.ops) == 0:
		return fmt.Errorf("%w: the transaction is empty", ErrInvalid)
	}
	return nil
}

// done records that the transaction is committed or prepared: the consumers no longer expect answers to its
// deliveries.
func (t *Txn) done(committed bool) {
	t.ended = true
	for _, d := range t.acked {
		d.consumer.answeredElsewhere(d, ackAnswer, committed)
	}
	for _, d := range t.released {
		d.consumer.answeredElsewhere(d, nackAnswer, committed)
	}
}

// toRanges sorts sequences in place and converts them to ranges of consecutive sequences.
func toRanges(sequences []uint64) []*pb.SequenceRange {
	if len(sequences) == 0 {
		return nil
	}
	if !slices.IsSorted(sequences) {
		slices.Sort(sequences)
	}
	var out []*pb.SequenceRange
	first, last := sequences[0], sequences[0]
	for _, s := range sequences[1:] {
		if s <= last+1 {
			last = s
			continue
		}
		out = append(out, &pb.SequenceRange{First: first, Last: last})
		first, last = s, s
	}
	return append(out, &pb.SequenceRange{First: first, Last: last})
}
