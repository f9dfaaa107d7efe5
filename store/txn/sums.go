// SPDX-License-Identifier: Apache-2.0

package txn

import "github.com/lockstep-mq/lockstep/store/crc"

// Checksum is a CRC32C that may be known.
type Checksum struct {
	Known bool
	Sum   uint32
}

// SetChecksum says what the CRC32C of the payload is that the Reader was reset to: as it was when it came in.
func (r *Reader) SetChecksum(sum Checksum) { r.sum = sum }

// RecordSums are the CRC32C of the messages of an OpPublish, if they are known. The zero value knows none.
type RecordSums struct {
	all  uint32 // of all of them, one behind the other
	each []uint32
}

// Reset forgets them.
func (s *RecordSums) Reset() { s.each = s.each[:0] }

// Of is the CRC32C of all messages of o, which the sums are of if any are known.
func (s *RecordSums) Of(o *Op) uint32 {
	if len(s.each) > 0 {
		return s.all
	}
	return crc.Of(o.Raw)
}

// Record is the CRC32C of message i, 0 if it is not known.
func (s *RecordSums) Record(i int) uint32 {
	if i < len(s.each) {
		return s.each[i]
	}
	return 0
}

// SumRecords finds out the CRC32C of each message of an OpPublish, if they are large, and adds them to sums, which is
// empty: of a single one from that of the payload, without looking at it, and of several with one pass for all that
// needs them. The operation must be the one that Next gave last, and CheckRecords must have accepted it.
func (r *Reader) SumRecords(o *Op, sums *RecordSums) {
	if len(o.Raw) < crc.Worth*o.Count {
		return
	}
	if o.Count == 1 && r.sum.Known && r.left == 0 && len(r.rest) == 0 { // the record is the last of the payload
		before := r.payload[:len(r.payload)-len(o.Raw)]
		sums.all = crc.Behind(r.sum.Sum, crc.Of(before), len(o.Raw))
		sums.each = append(sums.each, sums.all)
		return
	}
	sums.all = 0
	for rec := range o.Records {
		sum := crc.Of(rec)
		sums.all = crc.Join(sums.all, sum, len(rec))
		sums.each = append(sums.each, sum)
	}
}
