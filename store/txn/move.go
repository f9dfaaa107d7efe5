// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"fmt"
)

// Limits of the operations that move queues between pairs of a fleet.
const (
	// MaxMoveQueues is the maximum number of queues in one move.
	MaxMoveQueues = 1000
	// MaxStatePairs is the maximum number of key-value pairs in an OpImportState.
	MaxStatePairs = 65_536
	// MaxStateKeyBytes is the maximum length of a key in an OpImportState.
	MaxStateKeyBytes = 64
	// MaxSequence is the highest sequence of a message that an OpImport accepts.
	MaxSequence = 1 << 62
)

// ImportQueue is a queue in an OpImportBegin.
type ImportQueue struct {
	Name string
	// Source is the number of the queue in the source pair, at least 1.
	Source uint64
	// Prioritized reports whether the queue has priorities.
	Prioritized bool
}

// StatePair is a key and a value in an OpImportState.
type StatePair struct{ Key, Value []byte }

const flagPrioritized = 1

// Fence adds an operation that fences queues of this pair for a move to another pair under an ownership epoch. pair
// is the name of the other pair. queues are the numbers of the queues, in ascending order. If an argument is invalid,
// the error of Finish wraps ErrMalformed, ErrTooLarge or ErrInvalidName.
func (b *Builder) Fence(epoch uint64, pair string, queues []uint64) {
	b.beginMove(OpFence, epoch, pair, len(queues))
	last := uint64(0)
	for _, id := range queues {
		if id <= last {
			b.fail(errMoveOrder())
		}
		b.buf = binary.AppendUvarint(b.buf, id-last)
		last = id
	}
	b.end()
}

// ImportBegin adds an operation that begins the import of queues from another pair under an ownership epoch. pair is
// the name of the other pair. queues must be in ascending order of Source. The errors are those of Fence.
func (b *Builder) ImportBegin(epoch uint64, pair string, queues []ImportQueue) {
	b.beginMove(OpImportBegin, epoch, pair, len(queues))
	last := uint64(0)
	for i := range queues {
		q := &queues[i]
		if err := CheckQueueName(q.Name); err != nil {
			b.fail(err)
		}
		if q.Source <= last {
			b.fail(errMoveOrder())
		}
		b.buf = appendString(b.buf, q.Name)
		b.buf = binary.AppendUvarint(b.buf, q.Source-last)
		flags := byte(0)
		if q.Prioritized {
			flags = flagPrioritized
		}
		b.buf = append(b.buf, flags)
		last = q.Source
	}
	b.end()
}

func (b *Builder) beginMove(code OpCode, epoch uint64, pair string, queues int) {
	if err := CheckName(pair); err != nil {
		b.fail(err)
	}
	b.checkEpoch(epoch)
	if queues == 0 || queues > MaxMoveQueues {
		b.fail(fmt.Errorf("%w: move of %d queues, must have 1 to %d", ErrTooLarge, queues, MaxMoveQueues))
	}
	b.begin(code, epoch)
	b.buf = binary.AppendUvarint(appendString(b.buf, pair), uint64(queues))
}

func (b *Builder) checkEpoch(epoch uint64) {
	if epoch == 0 {
		b.fail(errNoEpoch())
	}
}

func errMoveOrder() error {
	return fmt.Errorf("%w: queues of a move not in ascending order", ErrMalformed)
}

// Unfence adds an operation that ends the fence of all queues with this epoch. If there is no such fence, it ensures
// that none begins. The caller must have verified that the other pair has canceled the import, or that an operator
// has removed the other pair as lost (INV-28).
func (b *Builder) Unfence(epoch uint64) { b.onMove(OpUnfence, epoch) }

// DropMoved adds an operation that deletes all queues that are fenced with this epoch. The caller must have verified
// that the other pair has taken the queues.
func (b *Builder) DropMoved(epoch uint64) { b.onMove(OpDropMoved, epoch) }

// TakeMoved adds an operation with which the pair becomes the owner of all incoming queues of the epoch.
func (b *Builder) TakeMoved(epoch uint64) { b.onMove(OpTakeMoved, epoch) }

// CancelImport adds an operation that deletes the incoming queues of the epoch, if there are any, and ensures that
// no queue is taken under this epoch.
func (b *Builder) CancelImport(epoch uint64) { b.onMove(OpCancelImport, epoch) }

// ForgetMove adds an operation that removes the record of a move that was taken or canceled. The caller must have
// verified that the other pair has no fence with this epoch, or that it was removed from the fleet.
func (b *Builder) ForgetMove(epoch uint64) { b.onMove(OpForgetMove, epoch) }

func (b *Builder) onMove(code OpCode, epoch uint64) {
	b.checkEpoch(epoch)
	b.begin(code, epoch)
	b.end()
}

// BeginImport opens an operation that adds messages to an incoming queue. The argument from, at least 1, is the first
// sequence that the operation covers: the operation must contain all live messages from there up to its last message.
// Import adds messages to the operation, and EndImport closes it.
func (b *Builder) BeginImport(queue, epoch, from uint64) {
	b.checkEpoch(epoch)
	b.checkSequence(from)
	b.begin(OpImport, queue, epoch, from)
	b.msgs, b.count, b.last, b.drop = 0, len(b.buf), 0, false
	b.buf = append(b.buf, 0, 0, 0, 0)
}

// Import adds a message to the open import, in ascending order of the sequences, which are at most MaxSequence.
func (b *Builder) Import(sequence uint64, rec []byte) {
	if sequence > MaxSequence {
		b.fail(fmt.Errorf("%w: sequence %d", ErrTooLarge, sequence))
	}
	b.Move(sequence, rec)
}

// EndImport closes the open import.
func (b *Builder) EndImport() { b.EndPublish() }

// ImportState adds an operation with the next part of the state of an incoming queue. after is the key of the last
// pair of the previous part; empty for the first part. last reports whether this is the last part, which has no
// pairs. If an argument is invalid, the error of Finish wraps ErrMalformed or ErrTooLarge.
func (b *Builder) ImportState(queue, epoch uint64, after []byte, pairs []StatePair, last bool) {
	b.checkEpoch(epoch)
	if len(after) > MaxStateKeyBytes || len(pairs) > MaxStatePairs {
		b.fail(fmt.Errorf("%w: state with %d pairs after a key of %d bytes", ErrTooLarge, len(pairs), len(after)))
	}
	b.begin(OpImportState, queue, epoch)
	flag := byte(0)
	if last {
		flag = 1
	}
	b.buf = append(appendBytes(b.buf, after), flag)
	b.buf = binary.AppendUvarint(b.buf, uint64(len(pairs)))
	for _, p := range pairs {
		if len(p.Key) == 0 || len(p.Key) > MaxStateKeyBytes {
			b.fail(fmt.Errorf("%w: state with a key of %d bytes", ErrMalformed, len(p.Key)))
		}
		b.buf = appendBytes(appendBytes(b.buf, p.Key), p.Value)
	}
	b.end()
}

func appendBytes(dst, b []byte) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(b))), b...)
}

func (o *Op) decodeMove(d *decoder) {
	if o.Code == OpImport || o.Code == OpImportState {
		o.Queue = d.uvarint()
	}
	if o.Number = d.uvarint(); d.err == nil && o.Number == 0 {
		d.err = errNoEpoch()
	}
	switch o.Code { //nolint:exhaustive // the others have only an epoch
	case OpImport:
		o.Sequence = d.sequence()
		o.messages(d)
	case OpImportState:
		o.decodeState(d)
	case OpFence, OpImportBegin:
		o.Name = d.name()
		if o.Count = d.count(MaxMoveQueues); d.err == nil && o.Count == 0 {
			d.fail("move without a queue")
		}
		o.Raw = d.b
		last := uint64(0)
		for range o.Count {
			_, last = d.moved(o.Code, last)
		}
		o.Raw = o.Raw[:len(o.Raw)-len(d.b)]
	}
}

func (o *Op) decodeState(d *decoder) {
	o.Name = d.bytes(MaxStateKeyBytes)
	o.Last = d.flag()
	o.Count = d.count(MaxStatePairs)
	o.Raw = d.b
	for range o.Count {
		d.statePair()
	}
	o.Raw = o.Raw[:len(o.Raw)-len(d.b)]
}

func (d *decoder) statePair() (p StatePair) {
	if p.Key = d.bytes(MaxStateKeyBytes); d.err == nil && len(p.Key) == 0 {
		d.fail("state with an empty key")
	}
	p.Value = d.bytes(MaxTransactionBytes)
	return p
}

// moved decodes one queue of an OpFence or OpImportBegin. last is the number of the previous queue.
func (d *decoder) moved(code OpCode, last uint64) (q ImportQueue, number uint64) {
	if code == OpImportBegin {
		q.Name = string(d.queueName())
	}
	q.Source = last + d.uvarint()
	if d.err == nil && q.Source <= last {
		d.err = errMoveOrder()
	}
	if code == OpImportBegin {
		q.Prioritized = d.flag()
	}
	return q, q.Source
}

// Moved iterates over the queues of an OpFence or OpImportBegin. For an OpFence, only the number (Source) is set.
func (o *Op) Moved(yield func(ImportQueue) bool) {
	if o.Code != OpFence && o.Code != OpImportBegin {
		return
	}
	d, last := decoder{b: o.Raw}, uint64(0)
	for range o.Count {
		var q ImportQueue
		if q, last = d.moved(o.Code, last); d.err != nil || !yield(q) {
			return
		}
	}
}

// StatePairs iterates over the pairs of an OpImportState.
func (o *Op) StatePairs(yield func(StatePair) bool) {
	if o.Code != OpImportState {
		return
	}
	d := decoder{b: o.Raw}
	for range o.Count {
		if p := d.statePair(); d.err != nil || !yield(p) {
			return
		}
	}
}
