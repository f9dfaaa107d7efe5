package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Txn collects operations over any number of queues, to be committed all or none. Not safe for concurrent use.
type Txn struct {
	client    *Client
	ops       []*pb.Operation
	acked     []*Delivery
	released  []*Delivery
	lane      *lane  // identity that the first Commit took
	sequence  uint64 // its sequence; kept while the outcome is unknown
	committed bool
	err       error // first wrong operation
}

// lane is the identity of one producer that commits one transaction at a time, so that its sequences are committed in
// order. A client has as many as transactions were ever under way at once.
type lane struct {
	id   string
	next uint64
}

// TxnResult is what a transaction did.
type TxnResult struct {
	// LSN of the transaction in the store's log.
	LSN uint64
	// Results has one element for each operation, in the order of the calls.
	Results []OpResult
	// Duplicate is true when an earlier attempt had been committed.
	Duplicate bool
}

// OpResult is the result of one operation.
type OpResult struct {
	// FirstSequence: of a publish, the sequence of its first message; the others follow without a gap.
	FirstSequence uint64
	// Changed: of an acknowledgement or release, the messages that it changed.
	Changed uint64
}

// Begin starts a transaction. Nothing is sent before Commit.
func (c *Client) Begin() *Txn { return &Txn{client: c} }

// Publish adds messages for one queue.
func (t *Txn) Publish(queue string, ms ...Message) *Txn {
	t.fail(checkName("queue", queue))
	for i := range ms {
		t.fail(ms[i].check(t.client.opts.MaxMessageBytes))
	}
	t.ops = append(t.ops, &pb.Operation{Kind: &pb.Operation_Publish{
		Publish: &pb.PublishOperation{Queue: queue, Messages: messagesToProto(ms)},
	}})
	return t
}

// Ack acknowledges deliveries of one subscription when the transaction commits. One operation.
func (t *Txn) Ack(ds ...*Delivery) *Txn {
	if queue, sub, ranges, ok := t.ranges(ds); ok {
		t.acked = append(t.acked, ds...)
		t.ops = append(t.ops, &pb.Operation{Kind: &pb.Operation_Ack{
			Ack: &pb.AckOperation{Queue: queue, Subscription: sub, Ranges: ranges},
		}})
	}
	return t
}

// Release gives deliveries of one subscription back when the transaction commits; they are delivered again. One
// operation.
func (t *Txn) Release(ds ...*Delivery) *Txn {
	if queue, sub, ranges, ok := t.ranges(ds); ok {
		t.released = append(t.released, ds...)
		t.ops = append(t.ops, &pb.Operation{Kind: &pb.Operation_Release{
			Release: &pb.ReleaseOperation{Queue: queue, Subscription: sub, Ranges: ranges},
		}})
	}
	return t
}

// ranges gives the sequences of deliveries, which must be of one subscription.
func (t *Txn) ranges(ds []*Delivery) (queue, sub string, ranges []*pb.SequenceRange, ok bool) {
	if len(ds) == 0 {
		t.fail(fmt.Errorf("%w: no delivery given", ErrInvalid))
		return "", "", nil, false
	}
	sequences := make([]uint64, len(ds))
	for i, d := range ds {
		if d.consumer.queue != ds[0].consumer.queue || d.consumer.subscription != ds[0].consumer.subscription {
			t.fail(fmt.Errorf("%w: deliveries of different subscriptions in one operation; use one for each", ErrInvalid))
			return "", "", nil, false
		}
		sequences[i] = d.Sequence
	}
	return ds[0].consumer.queue, ds[0].consumer.subscription, toRanges(sequences), true
}

func (t *Txn) fail(err error) {
	if t.err == nil {
		t.err = err
	}
}

// Commit sends the transaction and returns when it is durable on every in-sync node. When it ends with
// ErrOutcomeUnknown, Commit may be called again: it repeats the same transaction, which is committed once at most.
// Errors: ErrQueueNotFound, ErrSubscriptionNotFound, ErrLimit, ErrInvalid, ErrTooOld, ErrUnavailable.
func (t *Txn) Commit(ctx context.Context) (TxnResult, error) {
	switch {
	case t.err != nil:
		return TxnResult{}, t.err
	case t.committed:
		return TxnResult{}, fmt.Errorf("%w: the transaction is committed already", ErrInvalid)
	case len(t.ops) == 0:
		return TxnResult{}, fmt.Errorf("%w: the transaction is empty", ErrInvalid)
	}
	resp, err := t.commit(ctx)
	var e *Error
	if errors.As(err, &e) && e.forgotten() && !errors.Is(err, ErrOutcomeUnknown) {
		// The lane was idle for too long. Nothing was committed, so the transaction may go under another identity.
		t.lane = nil
		resp, err = t.commit(ctx)
	}
	if errors.Is(err, ErrOutcomeUnknown) {
		return TxnResult{}, err // the lane stays with the transaction, for another Commit
	}
	t.client.returnLane(t.lane)
	t.lane = nil
	if err != nil {
		return TxnResult{}, err
	}
	t.committed = true
	for _, d := range t.acked {
		d.consumer.answeredElsewhere(d)
	}
	for _, d := range t.released {
		d.consumer.answeredElsewhere(d)
	}
	out := TxnResult{LSN: resp.GetLsn(), Duplicate: resp.GetDuplicate()}
	for _, r := range resp.GetResults() {
		out.Results = append(out.Results, OpResult{FirstSequence: r.GetFirstSequence(), Changed: r.GetChanged()})
	}
	return out, nil
}

// commit sends the transaction under its lane's identity.
func (t *Txn) commit(ctx context.Context) (resp *pb.CommitResponse, err error) {
	if t.lane == nil {
		t.lane = t.client.takeLane()
		t.sequence = t.lane.next
		t.lane.next++
	}
	req := &pb.CommitRequest{Operations: t.ops, Producer: &pb.Producer{Id: t.lane.id, Epoch: 1, Sequence: t.sequence}}
	unknown, err := t.client.do(ctx, "commit", func(ctx context.Context, cc *grpc.ClientConn) (err error) {
		resp, err = queues(cc).Commit(ctx, req)
		return err //nolint:wrapcheck // do needs it as it is
	})
	if unknown && err != nil && !errors.Is(err, ErrOutcomeUnknown) {
		// A repetition was refused. That does not tell what became of the attempt before it.
		err = fmt.Errorf("%w; %w", err, ErrOutcomeUnknown)
	}
	return resp, err
}

func (c *Client) takeLane() *lane {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.lanes); n > 0 {
		l := c.lanes[n-1]
		c.lanes = c.lanes[:n-1]
		return l
	}
	return &lane{id: uuid.NewString(), next: 1}
}

func (c *Client) returnLane(l *lane) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lanes = append(c.lanes, l)
}

// toRanges sorts sequences and joins neighbours.
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
