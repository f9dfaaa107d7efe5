// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Reader decodes a transaction. Byte slices in its results alias the payload. The zero Reader is ready for Reset, and
// a Reader can be reused with Reset. It is not safe for concurrent use.
type Reader struct {
	payload  []byte
	sum      Checksum // of payload
	body     []byte   // all operations
	rest     []byte   // operations not read yet
	ops      int
	left     int
	timeMS   int64
	producer Producer
	op       Op
	hasSite  bool
	site     Site

	transaction []byte // payload without the envelope
}

// Reset starts to read payload, which may be an envelope, and verifies its header. The errors wrap ErrMalformed or
// ErrNewerVersion.
func (r *Reader) Reset(payload []byte) error {
	*r = Reader{payload: payload, transaction: payload}
	if len(payload) > 0 && payload[0] == SiteVersion {
		inner, err := r.envelope(payload)
		if err != nil {
			return err
		}
		r.transaction = inner
	}
	if n := len(r.transaction); n > MaxTransactionBytes {
		return fmt.Errorf("%w: %d bytes, limit %d", ErrMalformed, n, MaxTransactionBytes)
	}
	d := decoder{b: r.transaction}
	version, flags := d.u8(), d.u8()
	if d.err == nil && (version != Version || flags&^flagProducer != 0) {
		return fmt.Errorf("%w: version %d, flags %#x", ErrNewerVersion, version, flags)
	}
	if len(d.b) >= 2 {
		r.ops = int(binary.LittleEndian.Uint16(d.b))
		d.b = d.b[2:]
	}
	r.timeMS = int64(d.u64())
	if flags&flagProducer != 0 {
		d.producer(&r.producer)
	}
	if d.err == nil && (r.ops == 0 || r.ops > MaxOps) {
		d.fail("invalid number of operations")
	}
	if d.err != nil {
		return d.err
	}
	r.body = d.b
	r.Rewind()
	return nil
}

func (d *decoder) producer(p *Producer) {
	n := int(d.u8())
	if n == 0 || n > MaxProducerIDBytes || n > len(d.b) {
		d.fail("invalid length of a producer id")
		return
	}
	p.ID = d.b[:n:n]
	d.b = d.b[n:]
	p.Epoch, p.Sequence = d.u32(), d.u64()
	if p.Sequence == 0 {
		d.fail("producer sequence of 0")
	}
}

// Rewind makes the next call of Next return the first operation again.
func (r *Reader) Rewind() { r.rest, r.left = r.body, r.ops }

// TimeMS returns the time at which the active created the transaction, in milliseconds since 1970.
func (r *Reader) TimeMS() int64 { return r.timeMS }

// Ops returns the number of operations.
func (r *Reader) Ops() int { return r.ops }

// Producer returns the transaction's producer, if it has one.
func (r *Reader) Producer() (Producer, bool) { return r.producer, r.producer.ID != nil }

// Next returns the next operation, which is valid until the next call. It returns io.EOF after the last operation;
// other errors wrap a Code, such as ErrMalformed or ErrNewerVersion. It does not verify the messages of a publish,
// move or import, or the transaction in an OpPrepare (CheckRecords, CheckMoves, Inner).
func (r *Reader) Next() (*Op, error) {
	if r.left == 0 {
		if len(r.rest) != 0 {
			return nil, fmt.Errorf("%w: %d trailing bytes after the last operation", ErrMalformed, len(r.rest))
		}
		return nil, io.EOF
	}
	d := decoder{b: r.rest}
	code, n := OpCode(d.u8()), uint64(d.u32())
	if d.err == nil && n > uint64(len(d.b)) {
		d.fail("operation exceeds the input")
	}
	if d.err != nil {
		return nil, d.err
	}
	r.rest = d.b[n:]
	r.left--
	r.op = Op{Code: code}
	if err := r.op.decode(d.b[:n:n]); err != nil {
		return nil, fmt.Errorf("%s: %w", code, err)
	}
	return &r.op, nil
}

// Op is one operation. Code determines the fields that are set.
type Op struct {
	Code OpCode
	// Queue is the number of the queue. It is 0 if the operation contains the name instead, or is not on one queue.
	Queue uint64
	// Sub is the number of the subscription. For OpPurge, 0 means all subscriptions; for OpPause, 0 means the queue.
	Sub uint32
	// Target is the number of the target queue of an OpForward or OpMove. For an OpMove that discards messages, it is
	// NoQueue.
	Target uint64
	// Name is the name of the new queue or subscription, or of the queue of an OpOwn. For other operations, it is the key
	// of an internal entry, the xid of a prepared transaction, or the pattern of a policy. For OpFence and OpImportBegin,
	// it is the name of the other pair. For OpImportState, it is the key of the last pair of the previous part.
	Name []byte
	// Move reports whether the messages of an OpForward are published only to the target.
	Move bool
	// Sequence is the sequence, at least 1, of an OpSeek or of a new subscription with StartSequence. For an OpImport,
	// it is the first sequence that the operation covers.
	Sequence uint64
	// Config is the configuration for OpCreateQueue and OpAlterQueue. For an OpSeek of RetentionSub, it contains the
	// retention for which the proposal was made. For other operations it is nil.
	Config  *Config
	Mask    ConfigMask
	Start   Start
	IfEmpty bool
	// Last reports whether an OpImportState is the last part of the state, which has no pairs.
	Last bool
	// Temporary, if not 0, is the TemporaryGrace that the queue must have for OpDeleteQueue to delete it.
	Temporary uint64
	// Count is the number of elements in Raw, such as messages, names, ranges, entries, changes or queues. For an
	// OpForward, 0 means all messages of the preceding publish.
	Count int
	// Raw contains the encoded elements that Count counts. For operations without elements, it contains the value of an
	// internal entry, the options of a new subscription, or the transaction of an OpPrepare. For OpSetForwards and
	// OpPolicy, it contains the forwards or the policy. For OpAlterSubscription, OpSite, OpFleet and OpPause, it
	// contains the change.
	Raw []byte
	// By is the party that decides the commit or rollback of a prepared transaction.
	By Decider
	// Number is, for a commit or rollback, the logical number of the OpPrepare, or 0 for any. For OpAccess and
	// OpSwapMeta, it is the expected version of the table or entry. For OpCreateQueue and OpAlterQueue, it is the result
	// of Own. For OpOwn and the operations of a move (OpCode.Moves), it is the ownership epoch.
	Number uint64
	// Requested is the checksum of the client's request for an OpAccess.
	Requested uint32
}

func (o *Op) decode(b []byte) error {
	d := decoder{b: b}
	switch o.Code {
	case OpCreateQueue:
		o.createQueue(&d)
	case OpAlterQueue:
		o.alterQueue(&d)
	case OpDeleteQueue:
		o.Queue = d.uvarint()
		o.deleteQueue(&d)
	case OpPurge, OpDeleteSubscription:
		o.Queue, o.Sub = d.uvarint(), d.sub()
	case OpCreateSubscription, OpCreateSubscriptionWith:
		o.createSubscription(&d)
	case OpPublish:
		o.Queue = d.uvarint()
		o.messages(&d)
	case OpAck, OpRelease, OpTake:
		o.Queue, o.Sub = d.uvarint(), d.sub()
		o.ranges(&d)
	case OpDue:
		o.dues(&d)
	case OpMove:
		o.Queue, o.Sub, o.Target = d.uvarint(), d.sub(), d.uvarint()
		o.messages(&d)
	case OpSeek:
		o.seek(&d)
	case OpPrepare, OpCommitPrepared, OpRollbackPrepared:
		o.decodePrepared(&d)
	case OpForward:
		o.decodeForward(&d)
	case OpSetForwards:
		o.Queue = d.uvarint()
		o.Raw = d.b
		d.forwards()
	case OpAccess:
		o.decodeAccess(&d)
	case OpAlterSubscription:
		o.alterSubscription(&d)
	case OpPause:
		o.decodePause(&d)
	case OpPolicy:
		o.decodePolicy(&d)
	case OpSite:
		o.decodeSite(&d)
	case OpFleet, OpOwn:
		o.decodeFleet(&d)
	case OpFence, OpUnfence, OpDropMoved, OpImportBegin, OpImport, OpImportState, OpTakeMoved, OpCancelImport,
		OpForgetMove:
		o.decodeMove(&d)
	case OpPutMeta, OpSwapMeta, OpDeleteMeta:
		o.decodeMeta(&d)
	default:
		return fmt.Errorf("%w: operation code %d", ErrNewerVersion, uint8(o.Code))
	}
	if len(d.b) != 0 {
		d.fail("trailing bytes")
	}
	return d.err
}

func (o *Op) decodeMeta(d *decoder) {
	if o.Code == OpDeleteMeta {
		o.Name = d.metaKey()
		return
	}
	limit := MaxMetaValueBytes
	if o.Code == OpSwapMeta {
		o.Number = d.uvarint()
		limit -= MetaVersionBytes
	}
	o.Name = d.metaKey()
	if len(d.b) > limit {
		d.fail("entry exceeds its limit")
	}
	o.Raw, d.b = d.b, nil
}

func (o *Op) deleteQueue(d *decoder) {
	if len(d.b) == 0 || d.b[0] != deleteTemporary {
		o.IfEmpty = d.flag()
		return
	}
	d.u8()
	if o.Temporary = d.uvarint(); o.Temporary == 0 || o.Temporary > MaxTime {
		d.fail("invalid grace")
	}
}

func (o *Op) createSubscription(d *decoder) {
	o.Queue = d.uvarint()
	o.start(d)
	o.Name = d.name()
	if o.Code == OpCreateSubscription || d.err != nil {
		return
	}
	o.Raw, d.b = d.b, nil
	options, err := DecodeSubscriptionOptions(o.Raw)
	if d.err = err; err == nil && options == (SubscriptionOptions{}) {
		d.fail("missing subscription options")
	}
}

// SubscriptionOptions returns the options of an OpCreateSubscriptionWith. Other operations have none.
func (o *Op) SubscriptionOptions() (options SubscriptionOptions) {
	if o.Code == OpCreateSubscriptionWith {
		options, _ = DecodeSubscriptionOptions(o.Raw)
	}
	return options
}

func (o *Op) seek(d *decoder) {
	o.Queue, o.Sub = d.uvarint(), d.sub()
	o.Sequence = d.sequence()
	if o.Sub == RetentionSub {
		o.Config = &Config{RetentionAge: d.uvarint(), RetentionBytes: d.uvarint(), RetentionMessages: d.uvarint()}
	}
}

func (o *Op) start(d *decoder) {
	o.Start = Start(d.u8())
	switch o.Start {
	case StartLatest, StartEarliest:
	case StartSequence:
		o.Sequence = d.sequence()
	default:
		d.fail("unknown start position")
	}
}

func (d *decoder) sequence() uint64 {
	v := d.uvarint()
	if v == 0 {
		d.fail("sequence of 0")
	}
	return v
}

func (o *Op) messages(d *decoder) {
	o.Count = int(d.u32())
	if o.Count == 0 || o.Count > MaxPublishMessages {
		d.fail("invalid number of messages")
	}
	o.Raw, d.b = d.b, nil
}

func (o *Op) createQueue(d *decoder) {
	o.Name = d.queueName()
	var own ConfigMask
	o.Config, own = d.ownConfig()
	o.Mask, o.Number = PlainFields, uint64(own)
	o.names(d)
}

func (o *Op) alterQueue(d *decoder) {
	o.Queue = d.uvarint()
	o.Config, o.Mask = d.config()
	set := o.Config.Fields() & o.Mask
	if o.Number = uint64(set); len(d.b) == 0 {
		return
	}
	own := ConfigMask(d.uvarint())
	if own&^o.Mask != 0 || set&^own != 0 || set == own {
		d.fail("invalid explicit fields")
	}
	o.Number = uint64(own)
}

// Own returns the fields that the operation sets on the queue itself: all such fields for an OpCreateQueue, those
// in Mask for an OpAlterQueue. For other operations it is empty.
func (o *Op) Own() (own ConfigMask) {
	if o.Code == OpAlterQueue || o.Code == OpCreateQueue {
		own = ConfigMask(o.Number)
	}
	return own
}

func (o *Op) names(d *decoder) {
	o.Count = d.count(MaxSubscriptions)
	o.Raw = d.b
	for range o.Count {
		d.name()
	}
	o.Raw = o.Raw[:len(o.Raw)-len(d.b)]
}

func (o *Op) ranges(d *decoder) {
	o.Count = d.count(MaxRanges)
	if o.Count == 0 {
		d.fail("no ranges")
	}
	o.Raw = d.b
	last := uint64(0)
	for range o.Count {
		r := d.rng(last)
		if r.First == 0 || r.Last < r.First {
			d.fail("invalid range")
		}
		last = r.Last
	}
	o.Raw = o.Raw[:len(o.Raw)-len(d.b)]
}

// Ranges iterates over the ranges of an OpAck, OpTake or OpRelease, in the order in which they were added.
func (o *Op) Ranges(yield func(Range) bool) {
	if o.Code != OpAck && o.Code != OpRelease && o.Code != OpTake {
		return
	}
	d := decoder{b: o.Raw}
	last := uint64(0)
	for range o.Count {
		r := d.rng(last)
		if d.err != nil || !yield(r) {
			return
		}
		last = r.Last
	}
}

// Subscriptions iterates over the names of the subscriptions of an OpCreateQueue.
func (o *Op) Subscriptions(yield func(name []byte) bool) {
	if o.Code != OpCreateQueue {
		return
	}
	d := decoder{b: o.Raw}
	for range o.Count {
		if n := d.bytes(MaxNameBytes); d.err != nil || !yield(n) {
			return
		}
	}
}

// Records iterates over the messages of an OpPublish, up to the first one that NextRecord rejects.
func (o *Op) Records(yield func(rec []byte) bool) {
	if o.Code != OpPublish {
		return
	}
	rest := o.Raw
	for range o.Count {
		rec, next, err := NextRecord(rest)
		if err != nil || !yield(rec) {
			return
		}
		rest = next
	}
}

// CheckRecords verifies that an OpPublish contains exactly Count valid records and no trailing bytes. A record is valid
// if DecodeMessage accepts it.
func (o *Op) CheckRecords() error {
	rest := o.Raw
	for range o.Count {
		rec, next, err := NextRecord(rest)
		if err == nil && rec[sizeFieldBytes] != 0 {
			_, err = DecodeMessage(rec)
		}
		if err != nil {
			return err
		}
		rest = next
	}
	if len(rest) != 0 {
		return fmt.Errorf("%w: %d trailing bytes after the last message", ErrMalformed, len(rest))
	}
	return nil
}

func (d *decoder) rng(last uint64) Range {
	first := last + uint64(d.varint())
	return Range{First: first, Last: first + d.uvarint()}
}

func (d *decoder) name() []byte { return d.checked(CheckName) }

func (d *decoder) queueName() []byte { return d.checked(CheckQueueName) }

func (d *decoder) checked(check func(string) error) []byte {
	n := d.bytes(MaxNameBytes)
	if d.err == nil {
		if err := check(string(n)); err != nil {
			d.err, d.b = err, nil
		}
	}
	return n
}

func (d *decoder) metaKey() []byte {
	key := d.bytes(MaxMetaKeyBytes)
	if d.err == nil && len(key) == 0 {
		d.fail("entry without a key")
	}
	return key
}

func (d *decoder) sub() uint32 {
	v := d.uvarint()
	if v > 1<<32-1 {
		d.fail("invalid subscription number")
		return 0
	}
	return uint32(v)
}

func (d *decoder) flag() bool {
	v := d.u8()
	if v > 1 {
		d.fail("invalid flag")
	}
	return v == 1
}
