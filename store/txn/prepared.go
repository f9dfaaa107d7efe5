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
	// ByCoordinator means that the transaction coordinator, a client, decided.
	ByCoordinator Decider = 0
	// ByOperator means that an operator decided, independently of the transaction coordinator.
	ByOperator Decider = 1
	// ByTimeout means that the active rolled the transaction back after the timeout for prepared transactions.
	ByTimeout Decider = 2
)

// Heuristic reports whether the decision was made without the transaction coordinator.
func (d Decider) Heuristic() bool { return d != ByCoordinator }

// CheckXID verifies an xid, the name of a prepared transaction. It must have 1 to MaxXIDBytes bytes of printable UTF-8.
// The error wraps ErrInvalidName.
func CheckXID(xid string) error {
	switch {
	case xid == "":
		return fmt.Errorf("%w: xid is empty", ErrInvalidName)
	case len(xid) > MaxXIDBytes:
		return fmt.Errorf("%w: xid has %d bytes, limit %d", ErrInvalidName, len(xid), MaxXIDBytes)
	case !utf8.ValidString(xid):
		return fmt.Errorf("%w: xid is not UTF-8", ErrInvalidName)
	}
	for _, r := range xid {
		if !unicode.IsPrint(r) {
			return fmt.Errorf("%w: xid contains an unprintable character, %U", ErrInvalidName, r)
		}
	}
	return nil
}

// Take adds an operation that acknowledges messages for one subscription. The ranges can be in any order. If one of the
// messages is already acknowledged or reserved by a prepared transaction, the transaction is rejected.
func (b *Builder) Take(queue uint64, sub uint32, ranges ...Range) {
	b.ranges(OpTake, queue, sub, ranges)
}

// Prepare adds an operation that stores transaction inner until it is committed or rolled back. inner must be
// finished, must have no producer and no envelope, and may contain only OpPublish, OpForward, OpAck and OpTake.
func (b *Builder) Prepare(xid string, inner []byte) {
	b.checkXID(xid)
	if len(inner) > MaxPreparedBytes {
		b.fail(fmt.Errorf("%w: transaction to prepare has %d bytes, limit %d", ErrTooLarge, len(inner),
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

// CommitPrepared adds an operation that commits a prepared transaction. number is the logical number of its
// OpPrepare, or 0 for any.
func (b *Builder) CommitPrepared(xid string, by Decider, number uint64) {
	b.decide(OpCommitPrepared, xid, by, number)
}

// RollbackPrepared adds an operation that rolls back a prepared transaction. number is the logical number of its
// OpPrepare, or 0 for any.
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
			d.fail("prepared transaction exceeds its limit")
		}
		o.Raw, d.b = d.b, nil
		return
	}
	o.By = Decider(d.u8())
	o.Number = d.uvarint()
	if o.By > ByTimeout {
		d.fail("unknown decider")
	}
}

// Inner resets r to the payload of a prepared transaction, or of a transaction to prepare. It verifies that the
// transaction contains only operations that can be prepared, but does not verify the messages. The errors wrap a Code.
func Inner(r *Reader, payload []byte) error {
	if err := r.Reset(payload); err != nil {
		return err
	}
	if _, ok := r.Producer(); ok || r.hasSite {
		return fmt.Errorf("%w: prepared transaction with a producer, or in an envelope", ErrMalformed)
	}
	for {
		op, err := r.Next()
		if err == io.EOF { //nolint:errorlint // Next does not wrap io.EOF
			r.Rewind()
			return nil
		}
		if err != nil {
			return err
		}
		if op.Code != OpPublish && op.Code != OpForward && op.Code != OpAck && op.Code != OpTake {
			return fmt.Errorf("%w: %s in a prepared transaction", ErrMalformed, op.Code)
		}
	}
}

// WithTimestamp returns a copy of a prepared transaction with the publish time of all messages set to timestampMS.
// Inner and CheckRecords must have accepted the transaction.
func WithTimestamp(payload []byte, timestampMS int64) []byte {
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
