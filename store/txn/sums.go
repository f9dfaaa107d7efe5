// SPDX-License-Identifier: Apache-2.0

package txn

import "github.com/lockstep-mq/lockstep/store/crc"

// Checksum is an optional CRC32C.
type Checksum struct {
	Known bool
	Sum   uint32
}

// SetChecksum sets the CRC32C of the payload passed to the last Reset. It covers the whole payload, with its envelope.
func (r *Reader) SetChecksum(sum Checksum) { r.sum = sum }

// RecordSums contains the CRC32C of each message of an OpPublish, if they are known. In the zero value they are
// unknown.
type RecordSums struct {
	all  uint32 // of the concatenated messages
	each []uint32
}

// Reset removes all checksums.
func (s *RecordSums) Reset() { s.each = s.each[:0] }

// Of returns the CRC32C of the concatenated messages of o, and computes it if s is empty. Otherwise, s must contain
// the checksums of o.
func (s *RecordSums) Of(o *Op) uint32 {
	if len(s.each) > 0 {
		return s.all
	}
	return crc.Of(o.Raw)
}

// Record returns the CRC32C of message i, or 0 if unknown.
func (s *RecordSums) Record(i int) uint32 {
	if i < len(s.each) {
		return s.each[i]
	}
	return 0
}

// SumRecords computes the CRC32C of each message of an OpPublish, and adds them to sums, which must be empty. If the
// messages have less than crc.MinReuseBytes on average, it does nothing. It derives the checksum of a single message
// from the checksum of the payload, if possible. The operation must be the last one returned by Next, and CheckRecords
// must have accepted it.
func (r *Reader) SumRecords(o *Op, sums *RecordSums) {
	if len(o.Raw) < crc.MinReuseBytes*o.Count {
		return
	}
	if o.Count == 1 && r.sum.Known && r.left == 0 && len(r.rest) == 0 { // the record is at the end of the payload
		before := r.payload[:len(r.payload)-len(o.Raw)]
		sums.all = crc.Suffix(r.sum.Sum, crc.Of(before), len(o.Raw))
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
