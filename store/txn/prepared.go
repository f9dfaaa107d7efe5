// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"unicode"
	"unicode/utf8"
)

// Decider is the party that decided a prepared transaction.
type Decider uint8

// Deciders, as stored.
const (
	// ByCoordinator is the client that prepared the transaction.
	ByCoordinator Decider = 0
	// ByOperator is an operator, without the coordinator.
	ByOperator Decider = 1
	// ByTimeout is the active, after the configured timeout for prepared transactions.
	ByTimeout Decider = 2
)

// Heuristic reports whether the decision was not made by the coordinator.
func (d Decider) Heuristic() bool { return d != ByCoordinator }

// CheckXID verifies the name of a prepared transaction: 1 to MaxXIDBytes bytes of printable UTF-8. The error wraps
// ErrInvalidName.
func CheckXID(xid string) error {
	switch {
	case xid == "":
		return fmt.Errorf("%w: the xid is empty", ErrInvalidName)
	case len(xid) > MaxXIDBytes:
		return fmt.Errorf("%w: the xid has %d bytes, the limit is %d", ErrInvalidName, len(xid), MaxXIDBytes)
	case !utf8.ValidString(xid):
		return fmt.Errorf("%w: the xid is not UTF-8", ErrInvalidName)
	}
	for _, r := range xid {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%w: the xid has a character in it that cannot be printed, %U", ErrInvalidName, r)
		}
	}
	return nil
}

// Take acknowledges messages of one subscription, in any order. If one of them is acknowledged or reserved by a
// prepared transaction when it is applied, the transaction is rejected.
func (b *Builder) Take(queue uint64, sub uint32, ranges ...Range) {
	b.ranges(OpTake, queue, sub, ranges)
}

// Prepare stores a transaction, finished by another Builder, until it is decided. It must have no producer, and only
// the operations OpPublish, OpForward, OpAck and OpTake.
func (b *Builder) Prepare(xid string, inner []byte) {
	b.checkXID(xid)
	if len(inner) > MaxPreparedBytes {
		b.fail(fmt.Errorf("%w: a transaction of %d bytes to be prepared, the limit is %d", ErrTooLarge, len(inner),
			MaxPreparedBytes))
	}
	b.begin(OpPrepare)
	if b.err != nil {
		return
	}
	b.buf = appendString(b.buf, xid)
	b.buf = append(b.buf, inner...)
	b.end()
}

// CommitPrepared commits a prepared transaction. number is the LSN of its OpPrepare, or 0 for any.
func (b *Builder) CommitPrepared(xid string, by Decider, number uint64) {
	b.decide(OpCommitPrepared, xid, by, number)
}

// RollbackPrepared rolls back a prepared transaction. number is the LSN of its OpPrepare, or 0 for any.
func (b *Builder) RollbackPrepared(xid string, by Decider, number uint64) {
	b.decide(OpRollbackPrepared, xid, by, number)
}

func (b *Builder) decide(code OpCode, xid string, by Decider, number uint64) {
	b.checkXID(xid)
	b.begin(code)
	b.buf = appendString(b.buf, xid)
	b.buf = append(b.buf, byte(by))
	b.buf = binary.AppendUvarint(b.buf, number)
	b.end()
}

func (b *Builder) checkXID(xid string) {
	if err := CheckXID(xid); err != nil {
		b.fail(err)
	}
}

func (d *decoder) xid() []byte {
	xid := d.bytes(MaxXIDBytes)
	if d.err == nil {
		if err := CheckXID(string(xid)); err != nil {
			d.err, d.b = err, nil
		}
	}
	return xid
}

func (o *Op) decodePrepared(d *decoder) {
	o.Name = d.xid()
	if o.Code == OpPrepare {
		if len(d.b) > MaxPreparedBytes {
			d.fail("a prepared transaction that is larger than its limit")
		}
		o.Raw, d.b = d.b, nil
		return
	}
	o.By = Decider(d.u8())
	o.Number = d.uvarint()
	if o.By > ByTimeout {
		d.fail("a decider that is not known")
	}
}

// Inner resets r to the transaction in an OpPrepare, or one kept by a state. It verifies that the transaction can be
// prepared, except for its messages. The errors wrap a Code.
func Inner(r *Reader, payload []byte) error {
	if err := r.Reset(payload); err != nil {
		return err
	}
	if _, ok := r.Producer(); ok {
		return fmt.Errorf("%w: a prepared transaction with a producer of its own", ErrMalformed)
	}
	for {
		op, err := r.Next()
		if err == io.EOF { //nolint:errorlint // Next returns it as it is
			r.Rewind()
			return nil
		}
		if err != nil {
			return err
		}
		if op.Code != OpPublish && op.Code != OpForward && op.Code != OpAck && op.Code != OpTake {
			return fmt.Errorf("%w: a prepared transaction can publish and acknowledge, not %s", ErrMalformed, op.Code)
		}
	}
}

// Stamped returns a copy of a prepared transaction in which all messages have another publish time. Inner and
// CheckRecords must have accepted the transaction.
func Stamped(payload []byte, timestampMS int64) []byte {
	out := slices.Clone(payload)
	var r Reader
	if Inner(&r, out) != nil {
		return out
	}
	for range r.Ops() {
		op, err := r.Next()
		if err != nil {
			return out
		}
		for rec := range op.Records { // the records alias the copy
			binary.LittleEndian.PutUint64(rec[sizeFieldBytes+1:], uint64(timestampMS))
		}
	}
	return out
}

// fingerprintInner continues a checksum over the operations of a prepared transaction.
func (o *Op) fingerprintInner(sum uint32, table *crc32.Table) uint32 {
	sum = crc32.Update(sum, table, o.Name)
	var r Reader
	if r.Reset(o.Raw) != nil {
		return sum // Inner has rejected it
	}
	for range r.Ops() {
		inner, err := r.Next()
		if err != nil || inner.Code == OpPrepare {
			return sum
		}
		sum = inner.Fingerprint(sum, table)
	}
	return sum
}

// ofPrepared is Error for OK and the codes of two-phase transactions and takes; "" for other codes.
func (c Code) ofPrepared() string {
	switch c { //nolint:exhaustive // the others have nothing to do with it
	case OK:
		return "no error"
	case ErrAlreadyAcknowledged:
		return "a message was acknowledged before: it was processed elsewhere; drop what was made of it"
	case ErrReserved:
		return "a message is held by a prepared transaction: it is processed elsewhere; `lockstep txn list` shows them"
	case ErrXIDInUse:
		return "a transaction of that xid is prepared, or was decided lately: take a new xid for each transaction"
	case ErrXIDNotFound:
		return "no transaction of that xid is prepared, and none is remembered: it was never prepared, or decided " +
			"long ago"
	case ErrTooManyPrepared:
		return "too many prepared transactions, or too many bytes in them: decide some first; `lockstep txn list` " +
			"shows them"
	case ErrCommitted:
		return "the transaction was committed: it cannot be rolled back any more"
	case ErrRolledBack:
		return "the transaction was rolled back: it cannot be committed any more"
	case ErrHeuristicCommit:
		return "an operator has committed the transaction: it cannot be rolled back any more; undo elsewhere what " +
			"was rolled back there, or make good for it here"
	case ErrHeuristicRollback:
		return "an operator, or the time-out txn.prepared-timeout, has rolled the transaction back: it cannot be " +
			"committed any more; undo what was committed elsewhere, or do it again here"
	case ErrPreparedInUse:
		return "a prepared transaction still needs it: have it committed or rolled back first; `lockstep txn list` " +
			"shows it"
	}
	return ""
}
