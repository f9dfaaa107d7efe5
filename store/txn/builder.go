// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/lockstep-mq/lockstep/store/crc"
)

// Builder encodes transactions and appends each to a buffer of the caller. Finish returns the first error. A Builder
// can be reused after Finish, and the zero Builder is ready for Begin. It is not safe for concurrent use.
type Builder struct {
	buf       []byte
	start     int // start of this transaction in buf
	op        int // start of the open operation in buf, or -1
	ops       int
	msgs      int    // messages in the open publish, move or import
	count     int    // position of the message count of the last publish, move or import
	published int    // end of the last closed publish, move or import
	last      uint64 // last sequence of the open move or import
	drop      bool   // the open move has no target
	alone     bool
	owned     string // name of the queue of an OpOwn that is the first operation
	creates   bool   // the second operation creates the queue owned
	refs      *[]Ref // nil: all bodies are copied
	referred  int    // bytes of the referenced bodies of this transaction
	before    int    // value of referred at the start of the open operation
	err       error
}

// ReferBytes is the minimum size of a body that is referenced instead of copied.
const ReferBytes = 4 << 10

// Ref is a message body that is part of an encoded transaction but was not copied into the buffer.
type Ref struct {
	// At is the index at which the body must be inserted, relative to the start of the buffer. If the caller separates
	// the transaction from a buffer with several transactions, it must make At relative to the transaction.
	At   int
	Data []byte
	// Sum is the CRC32C of Data.
	Sum uint32
}

// Refer makes the transaction append bodies of at least ReferBytes to refs, with their positions in the buffer,
// instead of copying them. It must be called after Begin. If refs is nil, all bodies are copied. Otherwise, Published
// must not be used.
func (b *Builder) Refer(refs *[]Ref) { b.refs = refs }

// Begin starts a transaction that is appended to dst. timeMS is the time of the active in milliseconds since 1970.
// Begin clamps it to the range from 0 to MaxTimeMS, which the state can store. producer may be nil.
func (b *Builder) Begin(dst []byte, timeMS int64, producer *Producer) {
	*b = Builder{buf: dst, start: len(dst), op: -1}
	flags := byte(0)
	if producer != nil {
		flags |= flagProducer
	}
	b.buf = append(b.buf, Version, flags, 0, 0)
	b.buf = binary.LittleEndian.AppendUint64(b.buf, uint64(min(max(timeMS, 0), MaxTimeMS)))
	if producer == nil {
		return
	}
	if err := CheckProducer(*producer); err != nil {
		b.fail(err)
		return
	}
	b.buf = append(b.buf, byte(len(producer.ID)))
	b.buf = append(b.buf, producer.ID...)
	b.buf = binary.LittleEndian.AppendUint32(b.buf, producer.Epoch)
	b.buf = binary.LittleEndian.AppendUint64(b.buf, producer.Sequence)
}

// CheckProducer verifies the ID and the sequence of p. The error wraps ErrMalformed.
func CheckProducer(p Producer) error {
	if len(p.ID) == 0 || len(p.ID) > MaxProducerIDBytes {
		return fmt.Errorf("%w: producer id of %d bytes, must have 1 to %d", ErrMalformed, len(p.ID),
			MaxProducerIDBytes)
	}
	if p.Sequence == 0 {
		return fmt.Errorf("%w: producer sequences start at 1", ErrMalformed)
	}
	return nil
}

// CreateQueue adds an operation that creates a queue and subscriptions that start at the queue's first message.
func (b *Builder) CreateQueue(name string, c Config, subscriptions ...string) {
	b.CreateQueueWith(name, c, c.Fields(), subscriptions...)
}

// CreateQueueWith is like CreateQueue. own is the set of explicit fields: policies do not set them, even if they are 0.
// own must contain all fields of c that are not 0.
func (b *Builder) CreateQueueWith(name string, c Config, own ConfigMask, subscriptions ...string) {
	if err := CheckQueueName(name); err != nil {
		b.fail(err)
	}
	if len(subscriptions) > MaxSubscriptions {
		b.fail(fmt.Errorf("%w: %d", ErrTooManySubscriptions, len(subscriptions)))
	}
	b.creates = b.ops == 1 && b.owned == name
	b.begin(OpCreateQueue)
	b.buf = appendString(b.buf, name)
	b.buf = AppendOwnConfig(b.buf, c, own)
	b.buf = binary.AppendUvarint(b.buf, uint64(len(subscriptions)))
	for _, s := range subscriptions {
		if err := CheckName(s); err != nil {
			b.fail(err)
		}
		b.buf = appendString(b.buf, s)
	}
	b.end()
}

// AlterQueue adds an operation that sets the fields in mask of a queue's configuration to their values in c. Fields in
// mask that are 0 in c are then no longer explicit: a policy can set them.
func (b *Builder) AlterQueue(queue uint64, c Config, mask ConfigMask) {
	b.AlterQueueWith(queue, c, mask, c.Fields()&mask)
}

// AlterQueueWith is like AlterQueue. own is the set of fields in mask that are explicit afterwards. own must contain
// all fields in mask that are not 0 in c.
func (b *Builder) AlterQueueWith(queue uint64, c Config, mask, own ConfigMask) {
	b.begin(OpAlterQueue, queue)
	b.buf = appendConfig(b.buf, c, mask)
	if own != c.Fields()&mask {
		b.buf = binary.AppendUvarint(b.buf, uint64(own))
	}
	b.end()
}

// DeleteQueue adds an operation that deletes a queue. If ifEmpty is set, a queue with messages is not deleted and the
// transaction is rejected.
func (b *Builder) DeleteQueue(queue uint64, ifEmpty bool) {
	b.begin(OpDeleteQueue, queue)
	flag := byte(0)
	if ifEmpty {
		flag = 1
	}
	b.buf = append(b.buf, flag)
	b.end()
}

// DeleteTemporary adds an operation that deletes a queue if its TemporaryGrace still equals grace. grace must be 1 to
// MaxTime.
func (b *Builder) DeleteTemporary(queue, grace uint64) {
	if grace == 0 || grace > MaxTime {
		b.fail(fmt.Errorf("%w: queue with a grace of %d ms is not temporary", ErrMalformed, grace))
	}
	b.begin(OpDeleteQueue, queue)
	b.buf = append(b.buf, deleteTemporary)
	b.buf = binary.AppendUvarint(b.buf, grace)
	b.end()
}

// deleteTemporary is the flag of an OpDeleteQueue with a grace period.
const deleteTemporary = 2

// Purge adds an operation that acknowledges all messages for a subscription. If sub is 0, it acknowledges them for all
// subscriptions, and ends the retention of all messages.
func (b *Builder) Purge(queue uint64, sub uint32) {
	b.onSub(OpPurge, queue, sub)
}

func (b *Builder) onSub(code OpCode, queue uint64, sub uint32) {
	b.begin(code, queue, uint64(sub))
	b.end()
}

// CreateSubscription adds an operation that creates a subscription of a queue.
func (b *Builder) CreateSubscription(queue uint64, name string, start Start) {
	b.CreateSubscriptionWith(queue, name, start, SubscriptionOptions{})
}

// CreateSubscriptionWith is CreateSubscription with options. Zero options have the same encoding as CreateSubscription.
// For StartSequence, use CreateSubscriptionAt.
func (b *Builder) CreateSubscriptionWith(queue uint64, name string, start Start, o SubscriptionOptions) {
	if start == StartSequence {
		b.fail(fmt.Errorf("%w: start sequence is missing", ErrMalformed))
	}
	b.createSubscription(queue, name, start, 0, o)
}

// CreateSubscriptionAt is CreateSubscriptionWith with StartSequence: the subscription starts at the given sequence.
func (b *Builder) CreateSubscriptionAt(queue uint64, name string, sequence uint64, o SubscriptionOptions) {
	b.checkSequence(sequence)
	b.createSubscription(queue, name, StartSequence, sequence, o)
}

func (b *Builder) createSubscription(queue uint64, name string, start Start, sequence uint64, o SubscriptionOptions) {
	if err := CheckName(name); err != nil {
		b.fail(err)
	}
	b.checkOptions(&o)
	code := OpCreateSubscription
	if o != (SubscriptionOptions{}) {
		code = OpCreateSubscriptionWith
	}
	b.begin(code, queue)
	b.buf = append(b.buf, byte(start))
	if start == StartSequence {
		b.buf = binary.AppendUvarint(b.buf, sequence)
	}
	b.buf = appendString(b.buf, name)
	b.buf = AppendSubscriptionOptions(b.buf, o)
	b.end()
}

func (b *Builder) checkSequence(sequence uint64) {
	if sequence == 0 {
		b.fail(fmt.Errorf("%w: sequences start at 1", ErrMalformed))
	}
}

// DeleteSubscription adds an operation that deletes a subscription.
func (b *Builder) DeleteSubscription(queue uint64, sub uint32) {
	b.onSub(OpDeleteSubscription, queue, sub)
}

// BeginPublish opens a publish operation. Message, MessageWith and Record add messages to it, and EndPublish closes it.
func (b *Builder) BeginPublish(queue uint64) {
	b.begin(OpPublish, queue)
	b.msgs, b.count = 0, len(b.buf)
	b.buf = append(b.buf, 0, 0, 0, 0)
}

// Message adds a message to the open publish.
func (b *Builder) Message(timestampMS int64, props []Property, body []byte) {
	b.MessageWith(timestampMS, nil, props, body)
}

// MessageWith adds a message with attributes to the open publish.
func (b *Builder) MessageWith(timestampMS int64, a *Attributes, props []Property, body []byte) {
	b.needPublish()
	if b.err == nil && b.Bytes()+MessageBytes(a, props, body) > MaxTransactionBytes {
		b.fail(errTooLarge()) // before memory is allocated
	}
	if b.err != nil {
		return
	}
	if b.refs != nil && len(body) >= ReferBytes {
		b.refer(timestampMS, a, props, body)
		return
	}
	buf, err := AppendMessage(b.buf, timestampMS, a, props, body)
	if err != nil {
		b.fail(fmt.Errorf("message %d: %w", b.msgs, err))
		return
	}
	b.buf = buf
	b.msgs++
}

func (b *Builder) refer(timestampMS int64, a *Attributes, props []Property, body []byte) {
	if err := CheckMessage(a, props, body); err != nil {
		b.fail(fmt.Errorf("message %d: %w", b.msgs, err))
		return
	}
	b.buf = appendHead(b.buf, timestampMS, a, props, body)
	*b.refs = append(*b.refs, Ref{At: len(b.buf), Data: body, Sum: crc.Of(body)})
	b.referred += len(body)
	b.msgs++
}

// Record adds a message encoded by AppendMessage to the open publish. It always copies the record.
func (b *Builder) Record(rec []byte) {
	b.needPublish()
	if b.err == nil && b.Bytes()+len(rec) > MaxTransactionBytes {
		b.fail(errTooLarge())
	}
	if b.err != nil {
		return
	}
	if _, err := DecodeMessage(rec); err != nil {
		b.fail(err)
		return
	}
	b.buf = append(b.buf, rec...)
	b.msgs++
}

// needPublish records an error unless a publish, move or import is open. Operations of other kinds are never open
// between calls: one method opens and closes them.
func (b *Builder) needPublish() {
	if b.op < 0 {
		b.fail(fmt.Errorf("%w: message outside a publish", ErrMalformed))
	}
}

// EndPublish closes the open publish.
func (b *Builder) EndPublish() {
	b.needPublish()
	if b.err == nil {
		b.err = CheckBatch(b.msgs)
	}
	if b.err != nil {
		return
	}
	binary.LittleEndian.PutUint32(b.buf[b.count:], uint32(b.msgs))
	b.end()
	b.published = len(b.buf)
}

// Published iterates over the records of the last closed publish. It must be called before another publish, move or
// import begins. The records alias the buffer.
func (b *Builder) Published(yield func(rec []byte) bool) {
	if b.err != nil {
		return
	}
	for rest := b.buf[b.count+4 : b.published]; len(rest) > 0; {
		rec, next, err := NextRecord(rest)
		if err != nil || !yield(rec) {
			return
		}
		rest = next
	}
}

// Ack adds an operation that acknowledges messages for one subscription. The ranges can be in any order.
func (b *Builder) Ack(queue uint64, sub uint32, ranges ...Range) { b.ranges(OpAck, queue, sub, ranges) }

// Release adds an operation that increments the delivery counts of unacknowledged messages for one subscription.
func (b *Builder) Release(queue uint64, sub uint32, ranges ...Range) {
	b.ranges(OpRelease, queue, sub, ranges)
}

func (b *Builder) ranges(code OpCode, queue uint64, sub uint32, ranges []Range) {
	if len(ranges) == 0 || len(ranges) > MaxRanges {
		b.fail(fmt.Errorf("%w: %d ranges in one operation, must have 1 to %d", ErrTooLarge, len(ranges), MaxRanges))
	}
	b.begin(code, queue, uint64(sub), uint64(len(ranges)))
	last := uint64(0)
	for _, r := range ranges {
		if r.First == 0 || r.Last < r.First {
			b.fail(fmt.Errorf("%w: invalid range %d to %d", ErrMalformed, r.First, r.Last))
		}
		// The difference wraps around, so the ranges can be in any order.
		b.buf = binary.AppendVarint(b.buf, int64(r.First-last))
		b.buf = binary.AppendUvarint(b.buf, r.Last-r.First)
		last = r.Last
	}
	b.end()
}

// Seek adds an operation that moves a subscription of a client to a sequence, at least 1.
func (b *Builder) Seek(queue uint64, sub uint32, sequence uint64) {
	if sub == RetentionSub {
		b.fail(fmt.Errorf("%w: seek of the hidden subscription", ErrMalformed))
	}
	b.seek(queue, sub, sequence)
	b.end()
}

// Trim adds an operation that ends the retention of messages below a sequence, if the queue still has the retention
// fields of c.
func (b *Builder) Trim(queue, sequence uint64, c *Config) {
	b.seek(queue, RetentionSub, sequence)
	b.buf = binary.AppendUvarint(b.buf, c.RetentionAge)
	b.buf = binary.AppendUvarint(b.buf, c.RetentionBytes)
	b.buf = binary.AppendUvarint(b.buf, c.RetentionMessages)
	b.end()
}

func (b *Builder) seek(queue uint64, sub uint32, sequence uint64) {
	b.checkSequence(sequence)
	b.begin(OpSeek, queue, uint64(sub), sequence)
}

// PutMeta adds an operation that sets an internal entry (queue.MetaEntry). The value can be empty.
func (b *Builder) PutMeta(key string, value []byte) {
	b.checkMetaKey(key)
	if len(value) > MaxMetaValueBytes {
		b.fail(fmt.Errorf("%w: entry of %d bytes, limit %d", ErrTooLarge, len(value), MaxMetaValueBytes))
	}
	b.begin(OpPutMeta)
	b.buf = appendString(b.buf, key)
	b.buf = append(b.buf, value...)
	b.end()
}

// SwapMeta adds an operation that replaces an internal entry if the entry has the expected version. The version is the
// logical number of the entry's last change, or 0 if the entry must not exist. The stored entry begins with
// MetaVersionBytes bytes: the version, and the first sequence of the preceding operation of the transaction.
func (b *Builder) SwapMeta(key string, expected uint64, value []byte) {
	b.checkMetaKey(key)
	if limit := MaxMetaValueBytes - MetaVersionBytes; len(value) > limit {
		b.fail(fmt.Errorf("%w: entry of %d bytes, limit %d", ErrTooLarge, len(value), limit))
	}
	b.begin(OpSwapMeta, expected)
	b.buf = appendString(b.buf, key)
	b.buf = append(b.buf, value...)
	b.end()
}

// DeleteMeta adds an operation that removes an internal entry. A missing entry is not an error.
func (b *Builder) DeleteMeta(key string) {
	b.checkMetaKey(key)
	b.begin(OpDeleteMeta)
	b.buf = appendString(b.buf, key)
	b.end()
}

func (b *Builder) checkMetaKey(key string) {
	if len(key) == 0 || len(key) > MaxMetaKeyBytes {
		b.fail(fmt.Errorf("%w: key of %d bytes, must have 1 to %d", ErrInvalidName, len(key), MaxMetaKeyBytes))
	}
}

// Ops returns the number of operations in the current transaction.
func (b *Builder) Ops() int { return b.ops }

// Bytes returns the current length of the transaction.
func (b *Builder) Bytes() int { return len(b.buf) - b.start + b.referred }

// Finish returns the buffer passed to Begin with the transaction appended, without referenced bodies. If the
// transaction is invalid, it returns the original buffer and an error: the error passed to Fail, or an error that wraps
// a Code or ErrInvalidMessage.
func (b *Builder) Finish() ([]byte, error) {
	if b.err == nil {
		b.check()
	}
	buf, start, ops, err := b.buf, b.start, b.ops, b.err
	*b = Builder{op: -1}
	if err != nil {
		return buf[:start], err
	}
	binary.LittleEndian.PutUint16(buf[start+2:], uint16(ops))
	return buf, nil
}

func (b *Builder) check() {
	switch {
	case b.op >= 0:
		b.fail(fmt.Errorf("%w: unfinished publish", ErrMalformed))
	case b.ops == 0:
		b.fail(fmt.Errorf("%w: no operation", ErrMalformed))
	case b.ops > MaxOps:
		b.fail(fmt.Errorf("%w: %d operations, limit %d", ErrTooLarge, b.ops, MaxOps))
	case b.alone && b.ops > 1 && (!b.creates || b.ops > 2):
		b.fail(ErrMixed)
	case b.Bytes() > MaxTransactionBytes:
		b.fail(errTooLarge())
	}
}

func errTooLarge() error {
	return fmt.Errorf("%w: transaction exceeds %d bytes", ErrTooLarge, MaxTransactionBytes)
}

// Fail makes Finish return err, unless an earlier error occurred.
func (b *Builder) Fail(err error) { b.fail(err) }

func (b *Builder) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// begin opens an operation and appends the numbers to its body.
func (b *Builder) begin(code OpCode, numbers ...uint64) {
	if b.op >= 0 {
		b.fail(fmt.Errorf("%w: unfinished publish", ErrMalformed))
	}
	b.alone = b.alone || code.Alone()
	b.op, b.before = len(b.buf), b.referred
	b.buf = append(slices.Grow(b.buf, opHeaderBytes+16), byte(code), 0, 0, 0, 0)
	for _, v := range numbers {
		b.buf = binary.AppendUvarint(b.buf, v)
	}
}

func (b *Builder) end() {
	n := len(b.buf) - b.op - opHeaderBytes + b.referred - b.before
	if n > MaxTransactionBytes {
		b.fail(errTooLarge())
		return
	}
	binary.LittleEndian.PutUint32(b.buf[b.op+1:], uint32(n))
	b.op = -1
	b.ops++
}
