// SPDX-License-Identifier: Apache-2.0

package client

import (
	"math/rand/v2"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// txnRequest contains the operations that are sent for a transaction: a publish to a partitioned queue is sent as one
// operation per partition.
type txnRequest struct {
	ops   []*pb.Operation
	parts []int // number of operations in ops for each operation of the transaction; nil if all are 1
}

// commitRequest returns the operations to send. While the outcome of an attempt is unknown, they do not change.
func (t *Txn) commitRequest() txnRequest {
	if !t.identity.OutcomeUnknown() || t.sent.ops == nil {
		t.sent = t.divide()
	}
	return t.sent
}

func (t *Txn) divide() txnRequest {
	if !t.client.partitions.known.Load() {
		return txnRequest{ops: t.ops}
	}
	r := txnRequest{}
	for _, op := range t.ops {
		divided := t.divideOperation(op)
		r.ops = append(r.ops, divided...)
		r.parts = append(r.parts, len(divided))
	}
	return r
}

func (t *Txn) divideOperation(op *pb.Operation) []*pb.Operation {
	publish := op.GetPublish()
	count := t.client.partitions.of(publish.GetQueue())
	if publish == nil || count == 0 {
		return []*pb.Operation{op}
	}
	byPartition := make(map[int]*pb.PublishOperation)
	var out []*pb.Operation
	withoutGroup := t.partitionWithoutGroup(count)
	for _, m := range publish.GetMessages() {
		at := withoutGroup
		if m.GetGroup() != "" {
			at = Partition(m.GetGroup(), count)
		}
		to := byPartition[at]
		if to == nil {
			to = &pb.PublishOperation{Queue: PartitionName(publish.GetQueue(), at, count)}
			byPartition[at] = to
			out = append(out, &pb.Operation{Kind: &pb.Operation_Publish{Publish: to}})
		}
		to.Messages = append(to.Messages, m)
	}
	return out
}

// partitionWithoutGroup returns the partition for messages without a group. If the transaction acknowledges messages
// of a queue with the same number of partitions, it is the partition of the first of these messages.
func (t *Txn) partitionWithoutGroup(count int) int {
	for _, d := range t.acked {
		if _, n := splitPartition(d.consumer.queue); n == count && d.consumer.member != nil {
			return d.consumer.member.index
		}
	}
	return rand.IntN(count) //nolint:gosec // distribution only
}

// again reports whether a refused request must be sent again, because a queue has turned out to be partitioned.
func (t *Txn) again(err error) bool {
	parts := partitionsOf(err)
	if parts == nil || t.identity.OutcomeUnknown() {
		return false
	}
	t.client.partitions.learn(parts)
	return true
}

// results converts the results of the sent operations to those of the operations of the transaction.
func (r *txnRequest) results(in []*pb.OperationResult) (out []OpResult) {
	parts := r.parts
	for len(in) > 0 {
		n := 1
		if len(parts) > 0 {
			n, parts = parts[0], parts[1:]
		}
		var sum OpResult
		for i, one := range in[:min(n, len(in))] {
			if i == 0 {
				sum.FirstSequence = one.GetFirstSequence()
			}
			sum.Changed += one.GetChanged()
			sum.Discarded += len(one.GetDuplicates())
		}
		out, in = append(out, sum), in[min(n, len(in)):]
	}
	return out
}
