// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"sync"

	"github.com/lockstep-mq/lockstep/store/queue"
)

// Lanes is the position of a read in each priority of a queue.
type Lanes struct {
	// Next is the sequence from which each priority is read. The read updates it.
	Next [queue.PriorityLevels]uint64
	// Skip selects the priorities to skip: bit p stands for priority p.
	Skip uint16
	// Empty is set by the read. Bit p is set if priority p was read and has no available message at or after Next.
	Empty uint16
}

func (s *Store) readLanes(ctx context.Context, req ReadRequest, dst []Delivery) ([]Delivery, uint64, error) {
	lanes, begin := req.Lanes, len(dst)
	one := req
	one.Lanes, lanes.Empty = nil, 0
	highest := uint64(0)
	bytes := 0
	for lane := uint8(queue.PriorityLevels - 1); lane < queue.PriorityLevels; lane-- {
		if lanes.Skip>>lane&1 == 1 {
			continue
		}
		one.lane, one.From = &lane, max(lanes.Next[lane], 1)
		one.MaxMessages = max(req.MaxMessages, 1) - (len(dst) - begin)
		one.MaxBytes = req.MaxBytes - bytes
		from := len(dst)
		var next uint64
		var err error
		if dst, next, err = s.readRepaired(ctx, one, dst); err != nil {
			if len(dst) > begin && ctx.Err() == nil {
				break // return the messages; the next read returns the error
			}
			return dst, highest, fmt.Errorf("messages of priority %d: %w", lane, err)
		}
		if next == one.From {
			lanes.Empty |= 1 << lane
		}
		lanes.Next[lane], highest = next, max(highest, next)
		for i := range dst[from:] {
			bytes += len(dst[from+i].Record)
		}
		if len(dst)-begin >= req.MaxMessages || req.MaxBytes > 0 && bytes >= req.MaxBytes {
			break
		}
	}
	return dst, highest, nil
}

// sparseRead is memory for a read that needs few messages of each page. The read copies these messages instead of
// retaining the pages.
type sparseRead struct {
	pages ReadBuffer
	room  copyBuffer
}

// maxSparse is the maximum number of messages that a sparse read collects before it reads pages.
const maxSparse = 512

var sparseReads = sync.Pool{New: func() any { return new(sparseRead) }} //nolint:gochecknoglobals // a pool

func newSparseRead() *sparseRead {
	p, _ := sparseReads.Get().(*sparseRead)
	return p
}

func (p *sparseRead) release() {
	p.room = nil // the records of the deliveries are slices of it
	sparseReads.Put(p)
}

func (p *sparseRead) copy(record []byte) []byte {
	if p == nil {
		return record
	}
	return p.room.copy(record)
}

// copyBuffer copies records into large allocations that several records share.
type copyBuffer []byte

func (b *copyBuffer) copy(record []byte) []byte {
	if len(*b) < len(record) {
		*b = make([]byte, max(len(record), 32<<10))
	}
	n := copy(*b, record)
	record, *b = (*b)[:n:n], (*b)[n:]
	return record
}

func (r *reading) buffer() *ReadBuffer {
	if r.sparse == nil {
		return r.req.Buffer
	}
	r.sparse.pages.reset()
	return &r.sparse.pages
}
