// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"slices"

	"github.com/lockstep-mq/lockstep/store/crc"
)

// fingerprintPrime is the FNV prime, used to mix in numbers.
const fingerprintPrime = 16_777_619

// Fingerprint returns the fingerprint of all operations of a transaction (Op.Fingerprint). table must be the table of
// crc32.Castagnoli. The errors are those of Reader.Reset and Reader.Next.
func Fingerprint(payload []byte, table *crc32.Table) (sum uint32, err error) {
	var r Reader
	if err := r.Reset(payload); err != nil {
		return 0, err
	}
	for {
		op, err := r.Next()
		if errors.Is(err, io.EOF) {
			return sum, nil
		}
		if err != nil {
			return 0, err
		}
		sum = op.Fingerprint(sum, table)
	}
}

// Fingerprint returns sum, a checksum of a client's request, extended by the operation. sum is 0 for the first
// operation of a transaction. The checksum excludes data that can differ between attempts of a request, such as
// publish times, and additions of the active (OpForward, OpOwn, Config.ExactBytes). It also excludes some other
// fields, such as Queue and Sequence. table must be the table of crc32.Castagnoli.
func (o *Op) Fingerprint(sum uint32, table *crc32.Table) uint32 {
	return o.FingerprintWith(sum, table, &RecordSums{})
}

// FingerprintWith is like Fingerprint, but reuses the known checksums of the operation's messages.
func (o *Op) FingerprintWith(sum uint32, table *crc32.Table, known *RecordSums) uint32 {
	if o.Code == OpForward || o.Code == OpOwn {
		return sum
	}
	requested := o.Mask &^ FieldExactBytes
	for _, v := range [...]uint64{uint64(o.Code), uint64(o.Start), o.Target ^ o.Temporary, uint64(requested)} {
		sum = sum*fingerprintPrime ^ uint32(v) ^ uint32(v>>32)
	}
	if o.Code == OpCreateQueue || o.Code == OpAlterQueue {
		for field, v := range o.Config.Values {
			if field != FieldExactBytes {
				sum = sum*fingerprintPrime ^ uint32(v) ^ uint32(v>>32)
			}
		}
		if set := o.Config.Fields(); o.Own()&^set != 0 {
			sum = sum*fingerprintPrime ^ uint32(o.Own()&^set)
		}
	}
	if o.Code == OpAccess {
		return sum*fingerprintPrime ^ o.Requested
	}
	if o.Code == OpSwapMeta { // the active derives the value from the request and the current entry
		return crc32.Update(sum, table, o.Name)
	}
	if o.Code == OpPrepare {
		return o.fingerprintInner(sum, table)
	}
	if o.Code != OpPublish {
		if o.IfEmpty {
			sum = ^sum
		}
		return crc32.Update(crc32.Update(sum, table, o.Name), table, o.Raw)
	}
	i := 0
	for rest := o.Raw; len(rest) > 0; i++ {
		rec, next, err := NextRecord(rest)
		if err != nil {
			return sum // CheckRecords has rejected it
		}
		sum = fingerprintRecord(sum, table, rec, known.Record(i))
		rest = next
	}
	return sum
}

// fingerprintRecord adds one message to the fingerprint sum. It excludes the publish, expiry and delivery times.
// known is the checksum of rec, or 0 if unknown.
func fingerprintRecord(sum uint32, table *crc32.Table, rec []byte, known uint32) uint32 {
	size, flags, rest := len(rec), rec[sizeFieldBytes], rec[recordHeaderBytes:]
	if flags&flagAttributes != 0 {
		d := decoder{b: rest}
		block := d.bytes(MaxAttributesBytes + maxDeadLetterBytes)
		if kept := withoutTimes(block); len(kept) < len(block) && d.err == nil {
			known = 0 // the known checksum covers excluded bytes
			size -= len(rest) - len(d.b)
			if rest = d.b; len(kept) == 0 {
				flags &^= flagAttributes
			} else {
				rest = slices.Concat(binary.AppendUvarint(nil, uint64(len(kept))), kept, rest)
				size += UvarintBytes(uint64(len(kept))) + len(kept)
			}
		}
	}
	sum = sum*fingerprintPrime ^ uint32(size)<<8 ^ uint32(flags)
	if known != 0 {
		return crc.Join(sum, crc.Suffix(known, crc.Of(rec[:recordHeaderBytes]), len(rest)), len(rest))
	}
	crc.Summed(len(rest))
	return crc32.Update(sum, table, rest)
}

// withoutTimes returns a copy of an attribute block without the time attributes, or the block itself if it has none.
func withoutTimes(block []byte) []byte {
	kept := block
	for d := (decoder{b: block}); len(d.b) > 0; {
		at := d.b
		tag := Attribute(d.u8())
		d.bytes(MaxAttributesBytes)
		switch {
		case d.err != nil:
			return block // CheckRecords has rejected it
		case tag != AttributeExpiresAt && tag != AttributeDeliverAt:
			if len(kept) < len(block) {
				kept = append(kept, at[:len(at)-len(d.b)]...)
			}
		case len(kept) == len(block):
			kept = slices.Clone(block[:len(block)-len(at)])
		}
	}
	return kept
}
