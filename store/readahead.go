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
	// aheadBytes is how much is read ahead at once.
	aheadBytes = 1 << 20
	// aheadDepth is how many pieces are read ahead of the one that is being used.
	aheadDepth = 4
	// aheadPart of the memory budget, and at most maxAhead pieces, are for what is read ahead.
	aheadPart = 16
	maxAhead  = 32
	// streamBytes is how much of what is wanted must lie together before more is read than was asked for: a reader that
	// wants one message here and one there is not helped by what lies between.
	streamBytes = 32 << 10
	// aheadPatience is for how long what was read ahead waits for its reader.
	aheadPatience = time.Second
)

// readAhead reads, for consumers that are behind, what they will want next: beside them, past the system's cache and in
// pieces that keep a disk busy. The system's own reading ahead is too little for that, and would fill its cache with
// what is read once.
//
// What it holds is not protected against being freed and written anew: the reader that takes it verifies that it is
// what the index says (a run's header has its number of birth), and reads the file if it is not.
type readAhead struct {
	mu      sync.Mutex // guards all below
	pieces  []*aheadPiece
	running sync.WaitGroup
	closed  bool
}

// aheadPiece is neighbouring runs that were read ahead or are being read.
type aheadPiece struct {
	file  *page.File
	first page.No
	bytes int
	next  uint64 // the sequence behind its last run's
	done  chan struct{}
	room  []byte

	// Valid when done is closed.
	data []byte
	err  error

	// Guarded by readAhead.mu.
	users int       // who copies from it, or waits to
	taken int       // up to where it was
	asked time.Time // for the last time
	led   bool      // what comes behind it was begun, if it was worth it
	// follows is what comes behind it, if it was begun.
	follows *aheadPiece
	bad     bool // it is not what the index says
}

// at is where a page begins in the piece; negative if it is not part of it.
func (p *aheadPiece) at(file *page.File, no page.No) int {
	if p.bad || p.file != file || no < p.first || uint64(no-p.first) >= uint64(p.bytes/file.PageSize()) {
		return -1
	}
	return int(no-p.first) * file.PageSize()
}

// idle tells whether the piece may be used for something else.
func (p *aheadPiece) idle(now time.Time) bool {
	select {
	case <-p.done:
		return p.users == 0 && (p.bad || p.taken >= p.bytes || now.Sub(p.asked) > aheadPatience)
	default:
		return false // its memory is being read into
	}
}

// find returns the piece that a page is part of, for copyFrom, or nil. A piece that was just begun is there for
// aheadPatience at least.
func (a *readAhead) find(file *page.File, no page.No) *aheadPiece {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pieces {
		if p.at(file, no) >= 0 {
			p.users++
			p.asked = time.Now()
			return p
		}
	}
	return nil
}

// copyFrom fills buf with the pages from no on, as far as the piece has them, and lets go of it. It returns how much
// that is: nothing if the piece could not be read.
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

// begin starts to read a piece, in a goroutine of its own. It returns nil when it is there, or others need all the
// memory for it.
func (a *readAhead) begin(p *aheadPiece, limit int) *aheadPiece {
	a.mu.Lock()
	defer a.mu.Unlock()
	now, at := time.Now(), -1
	for i, old := range a.pieces {
		if old.at(p.file, p.first) >= 0 {
			return nil
		}
		if old.idle(now) && (at < 0 || old.asked.Before(a.pieces[at].asked)) {
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
	p.asked, p.done = now, make(chan struct{})
	a.running.Go(func() {
		defer close(p.done)
		p.data, p.err = p.file.ReadUncached(p.first, p.bytes, p.room)
	})
	return p
}

// forget lets go of a piece that is not what it should be.
func (a *readAhead) forget(file *page.File, no page.No) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pieces {
		if p.at(file, no) >= 0 {
			p.bad = true
		}
	}
}

// follower returns the piece behind p, and whether the caller is the one who is to begin it.
func (a *readAhead) follower(p *aheadPiece) (next *aheadPiece, begin bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	begin = !p.led
	p.led = true
	return p.follows, begin
}

// follow notes what comes behind p; nil if that is not read ahead.
func (a *readAhead) follow(p, next *aheadPiece) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p.follows = next
}

// close waits for what is being read.
func (a *readAhead) close() {
	a.mu.Lock()
	a.closed = true
	a.mu.Unlock()
	a.running.Wait()
}

// aheadPieces is how many pieces there may be.
func (s *Store) aheadPieces() int { return int(min(s.o.MemoryBudget/aheadPart/aheadBytes, maxAhead)) }

// fromAhead fills buf with the pages of a group if they were read ahead, or should be: the reader wants much that lies
// together, and the system's cache does not hold it. It returns the part of the group that it has, which may be
// nothing.
func (r *reading) fromAhead(group []index.Entry, buf []byte) []index.Entry {
	if !r.streams(buf) {
		return nil
	}
	a, file, first := &r.s.ahead, r.s.file, group[0].Run.First
	p := a.find(file, first)
	if p == nil {
		cached, known := file.IsCached(first, int64(len(buf)))
		if cached {
			last := &group[len(group)-1]
			if further, _ := file.CachedAhead(last.Run.End()); !further {
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
		if n -= int(group[i].Run.Pages) * file.PageSize(); n < 0 {
			return group[:i]
		}
	}
	return group
}

// streams tells whether the reader wants much that lies together. Where several subscriptions read, the system's cache
// may do more.
func (r *reading) streams(buf []byte) bool {
	return !r.shared && len(r.want) > 1 && len(buf) >= streamBytes && len(buf) <= aheadBytes
}

// lead has the pieces behind p be read: the one that the reader comes to next, and some for the disk to go on with
// meanwhile.
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

// aheadFrom begins to read the neighbouring runs from the first one at or after a sequence on, unless the system's
// cache holds them. It returns nil if it does not.
func (r *reading) aheadFrom(seq uint64) *aheadPiece {
	p := stretchAt(r.view, r.s.file, r.req.Queue, seq)
	if p == nil {
		return nil
	}
	if cached, known := r.s.file.CachedAhead(p.first); cached && known {
		return nil
	}
	return r.s.ahead.begin(p, r.s.aheadPieces())
}

// stretchAt finds neighbouring runs of a queue, the first one at or after a sequence, and describes the piece that they
// are.
func stretchAt(view *tree.View, file *page.File, queueID, seq uint64) *aheadPiece {
	_, to := index.KeyRange(queueID)
	it := view.Scan(index.AppendKey(nil, queueID, seq), to)
	p := &aheadPiece{file: file}
	for end := page.No(0); it.Next(); {
		e, err := index.Decode(it.Key(), it.Value())
		if err != nil {
			break // the reader of that message finds out
		}
		n := int(e.Run.Pages) * file.PageSize()
		if p.bytes > 0 && e.Run.First != end || p.bytes+n > aheadBytes {
			break
		}
		if p.bytes == 0 {
			p.first = e.Run.First
		}
		p.bytes += n
		p.next, end = e.Last()+1, e.Run.End()
	}
	if p.bytes == 0 {
		return nil
	}
	return p
}
