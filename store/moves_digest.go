// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"

	"github.com/lockstep-mq/lockstep/store/throttle"
)

// ErrMissing is returned by DigestMessages if a message selected by DigestRequest.Only is not live.
var ErrMissing = errors.New("message is missing")

const (
	digestReadBytes     = 256 << 10
	digestReadMessages  = 1000
	digestMessageHeader = 12 // sequence, length
	// maxDigestLengths limits the size of MessageDigest.Lengths.
	maxDigestLengths = 20_000
)

// DigestRequest selects live messages of a queue.
type DigestRequest struct {
	Queue uint64
	// From and To limit the range of sequences; To is exclusive.
	From, To uint64
	// MaxBytes is the approximate maximum size of the messages; 0 means unlimited.
	MaxBytes uint64
	// Only, if not nil, contains the MessageDigest.Lengths of another copy of the queue: only these messages are read.
	Only []uint64
	// Urgent disables the pauses that favor commits (throttle.FullSpeed).
	Urgent bool
}

// MessageDigest is a digest of live messages that is comparable between pairs.
type MessageDigest struct {
	// SHA256 covers the messages and their sequences.
	SHA256 [sha256.Size]byte
	// Lengths contains alternately the numbers of consecutive sequences without a live message and with one, from
	// DigestRequest.From on.
	Lengths []uint64
	// Next is the exclusive end of the range that was read. It can be below DigestRequest.To if MaxBytes or the maximum
	// size of Lengths was reached. With DigestRequest.Only, it follows the last message that was read.
	Next uint64
	// Bytes is the size of the messages.
	Bytes uint64
}

// DigestMessages returns the digest of the live messages in a range of sequences of a queue, which can be incoming.
// It does not block transactions for long. Errors include ErrMissing, those of Read, and that of ctx.
func (s *Store) DigestMessages(ctx context.Context, req DigestRequest) (MessageDigest, error) {
	if req.Urgent {
		ctx = throttle.FullSpeed(ctx)
	}
	pace := s.Pace(ctx, 0)
	d := digestBuilder{h: sha256.New(), next: max(req.From, 1), only: req.Only, wanted: max(req.From, 1)}
	d.selectNext()
	read := ReadRequest{
		Queue: req.Queue, Before: req.To, MaxMessages: digestReadMessages, MaxBytes: digestReadBytes,
		Buffer: new(ReadBuffer),
	}
	var list []Delivery
	for read.From = d.next; read.From < req.To && !d.full(req.MaxBytes); {
		var err error
		if list, read.From, err = s.Read(ctx, read, list[:0]); err != nil {
			return MessageDigest{}, err
		}
		if len(list) == 0 {
			d.skipTo(req.To)
			break
		}
		size := 0
		for i := range list {
			if err := d.add(&list[i]); err != nil {
				return MessageDigest{}, fmt.Errorf("queue %d: %w", req.Queue, err)
			}
			size += len(list[i].Record)
		}
		if req.Only != nil {
			if d.left == 0 {
				break
			}
			read.From = max(read.From, d.wanted)
		}
		if err := pace.Did(ctx, size); err != nil {
			return MessageDigest{}, fmt.Errorf("digest: %w", err)
		}
	}
	if req.Only != nil && d.left > 0 {
		return MessageDigest{}, fmt.Errorf("queue %d: %w: sequence %d", req.Queue, ErrMissing, d.wanted)
	}
	out := MessageDigest{Lengths: d.lengths, Next: d.next, Bytes: d.bytes}
	d.h.Sum(out.SHA256[:0])
	return out, nil
}

type digestBuilder struct {
	h       hash.Hash
	lengths []uint64
	next    uint64 // the sequence after the last one in lengths
	bytes   uint64

	only   []uint64 // the rest of DigestRequest.Only
	wanted uint64   // the next of the selected sequences, if left is not 0
	left   uint64   // number of consecutive selected sequences
}

func (d *digestBuilder) full(maxBytes uint64) bool {
	return maxBytes > 0 && d.bytes >= maxBytes || len(d.lengths) >= maxDigestLengths
}

// skipTo adds sequences without live messages.
func (d *digestBuilder) skipTo(seq uint64) {
	if seq > d.next {
		d.extend(seq-d.next, 0)
		d.next = seq
	}
}

// extend adds n sequences. live is 1 if they are live, otherwise 0.
func (d *digestBuilder) extend(n uint64, live int) {
	if len(d.lengths) == 0 && live == 1 {
		d.lengths = append(d.lengths, 0)
	}
	if len(d.lengths)%2 == live {
		d.lengths = append(d.lengths, n)
		return
	}
	d.lengths[len(d.lengths)-1] += n
}

// selectNext continues with the next range of selected sequences.
func (d *digestBuilder) selectNext() {
	for d.left == 0 && len(d.only) > 1 {
		d.wanted += d.only[0]
		d.left = d.only[1]
		d.only = d.only[2:]
	}
}

func (d *digestBuilder) add(m *Delivery) error {
	if d.only != nil {
		switch {
		case d.left == 0 || m.Sequence < d.wanted:
			return nil
		case m.Sequence > d.wanted:
			return fmt.Errorf("%w: sequence %d", ErrMissing, d.wanted)
		}
		d.wanted++
		if d.left--; d.left == 0 {
			d.selectNext()
		}
	}
	d.skipTo(m.Sequence)
	d.extend(1, 1)
	d.next = m.Sequence + 1
	d.bytes += uint64(len(m.Record))
	var b [digestMessageHeader]byte
	binary.LittleEndian.PutUint64(b[:], m.Sequence)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(m.Record)))
	_, _ = d.h.Write(b[:]) // never fails
	_, _ = d.h.Write(m.Record)
	return nil
}
