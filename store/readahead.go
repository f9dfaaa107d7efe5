// SPDX-License-Identifier: Apache-2.0

package store

import (
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

const (
	aheadBytes = 1 << 20
	aheadDepth = 4
	// All pieces together use at most 1/aheadPart of the memory budget. maxAhead limits their number.
	aheadPart = 16
	maxAhead  = 32
	// streamBytes is the minimum amount of adjacent wanted data for which read-ahead is started.
	streamBytes = 32 << 10
	// aheadTimeout is the time since the last request for a piece after which its unread data may be discarded.
	aheadTimeout = time.Second
)

// readAhead prefetches data for lagging consumers. It reads several large pieces concurrently, with direct I/O.
//
// The pages may be freed and rewritten before the data is used. The reader verifies that the data matches the index
// (an extent's header contains its birth number), and otherwise reads the file.
type readAhead struct {
	mu      sync.Mutex // guards the fields below
	pieces  []*aheadPiece
	running sync.WaitGroup
	closed  bool
}

type aheadPiece struct {
	file  *page.File
	first page.No
	bytes int
	next  uint64 // sequence after its last extent
	done  chan struct{}
	room  []byte

	// Valid after done is closed.
	data []byte
	err  error

	// Guarded by readAhead.mu.
	users     int // readers that copy from the piece or wait for its data
	taken     int // end of the consumed part
	requested time.Time
	led       bool // the read of the following piece was started, or was not needed
	// follows is the following piece, if its read was started.
	follows *aheadPiece
	bad     bool // does not match the index
}

// at returns the offset of a page in the piece, or a negative number if the piece does not contain the page.
func (p *aheadPiece) at(file *page.File, no page.No) int {
	if p.bad || p.file != file || no < p.first || uint64(no-p.first) >= uint64(p.bytes/file.PageSize()) {
		return -1
	}
	return int(no-p.first) * file.PageSize()
}

func (p *aheadPiece) idle(now time.Time) bool {
	select {
	case <-p.done:
		return p.users == 0 && (p.bad || p.taken >= p.bytes || now.Sub(p.requested) > aheadTimeout)
	default:
		return false // a read into its memory is in progress
	}
}

// find returns the piece that contains a page and increments its users; the caller must call copyFrom. It returns
// nil if no piece contains the page.
func (a *readAhead) find(file *page.File, no page.No) *aheadPiece {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pieces {
		if p.at(file, no) >= 0 {
			p.users++
			p.requested = time.Now()
			return p
		}
	}
	return nil
}

// copyFrom fills buf with the pages of the piece, beginning with page no, and releases the piece. It returns the
// number of bytes copied, which is 0 if the piece could not be read.
func (a *readAhead) copyFrom(p *aheadPiece, no page.No, buf []byte) int {
	<-p.done
	n, at := 0, int(no-p.first)*p.file.PageSize()
	if p.err == nil {
		n = copy(buf, p.data[at:])
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p.users--
	p.taken = max(p.taken, at+n)
	return n
}

// begin starts to read a piece and returns the piece. It returns nil if another piece already contains the first
// page, if no memory is available, or if a is closed.
func (a *readAhead) begin(p *aheadPiece, limit int) *aheadPiece {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, at := time.Now(), -1
	for i, old := range a.pieces {
		if old.at(p.file, p.first) >= 0 {
			return nil
		}
		if old.idle(now) && (at < 0 || old.requested.Before(a.pieces[at].requested)) {
			at = i
		}
	}
	switch {
	case a.closed:
		return nil
	case len(a.pieces) < limit:
		a.pieces = append(a.pieces, p)
		p.room = vfs.AlignedBlock(aheadBytes + page.UncachedRoom)
	case at >= 0:
		p.room = a.pieces[at].room
		a.pieces[at] = p
	default:
		return nil
	}
	p.requested, p.done = now, make(chan struct{})
	a.running.Go(func() {
		defer close(p.done)
		p.data, p.err = p.file.ReadUncached(p.first, p.bytes, p.room)
	})
	return p
}

func (a *readAhead) markStale(file *page.File, no page.No) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pieces {
		if p.at(file, no) >= 0 {
			p.bad = true
		}
	}
}

// follower returns the piece after p, and whether the caller must start its read.
func (a *readAhead) follower(p *aheadPiece) (next *aheadPiece, begin bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	begin = !p.led
	p.led = true
	return p.follows, begin
}

func (a *readAhead) follow(p, next *aheadPiece) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p.follows = next
}

func (a *readAhead) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.running.Wait()
}

func (s *Store) aheadPieces() int { return int(min(s.o.MemoryBudget/aheadPart/aheadBytes, maxAhead)) }

// fromAhead fills buf with the pages of a group that were read ahead, and returns that part of the group. If the
// reader is streaming, fromAhead starts the read-ahead for data that the operating system's page cache does not
// contain.
func (r *reading) fromAhead(group []index.Entry, buf []byte) []index.Entry {
	if !r.streams(buf) {
		return nil
	}
	a, file, first := &r.s.ahead, r.file, group[0].Extent.First
	p := a.find(file, first)
	if p == nil {
		cached, known := file.IsCached(first, int64(len(buf)))
		if cached {
			last := &group[len(group)-1]
			if further, _ := file.CachedAhead(last.Extent.End()); !further {
				r.aheadFrom(last.Last() + 1)
			}
		}
		if cached || !known {
			return nil
		}
		r.aheadFrom(group[0].First)
		if p = a.find(file, first); p == nil {
			return nil
		}
	}
	r.lead(p)
	n := a.copyFrom(p, first, buf)
	for i := range group {
		if n -= int(group[i].Extent.Pages) * file.PageSize(); n < 0 {
			return group[:i]
		}
	}
	return group
}

// streams reports whether data should be read ahead: the reader wants much adjacent data, and is the only
// subscription of the queue or reads without a subscription.
func (r *reading) streams(buf []byte) bool {
	return !r.shared && len(r.want) > 1 && len(buf) >= streamBytes && len(buf) <= aheadBytes
}

func (r *reading) lead(p *aheadPiece) {
	for range aheadDepth {
		next, begin := r.s.ahead.follower(p)
		if begin {
			next = r.aheadFrom(p.next)
			r.s.ahead.follow(p, next)
		}
		if next == nil {
			return
		}
		p = next
	}
}

// aheadFrom starts to read a piece of adjacent extents, beginning with the first extent at or after a sequence, and
// returns the piece. It returns nil if no read was started.
func (r *reading) aheadFrom(seq uint64) *aheadPiece {
	p := stretchAt(r.view, r.file, r.req.Queue, seq)
	if p == nil {
		return nil
	}
	if cached, known := r.file.CachedAhead(p.first); cached && known {
		return nil
	}
	return r.s.ahead.begin(p, r.s.aheadPieces())
}

func stretchAt(view *tree.View, file *page.File, queueID, seq uint64) *aheadPiece {
	_, to := index.KeyRange(queueID)
	it := view.Scan(index.AppendKey(nil, queueID, seq), to)
	p := &aheadPiece{file: file}
	for end := page.No(0); it.Next(); {
		e, err := index.Decode(it.Key(), it.Value())
		if err != nil {
			break // the reader of that message reports the error
		}
		n := int(e.Extent.Pages) * file.PageSize()
		if p.bytes > 0 && e.Extent.First != end || p.bytes+n > aheadBytes {
			break
		}
		if p.bytes == 0 {
			p.first = e.Extent.First
		}
		p.bytes += n
		p.next, end = e.Last()+1, e.Extent.End()
	}
	if p.bytes == 0 {
		return nil
	}
	return p
}
