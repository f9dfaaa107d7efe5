// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/amqp/session"
)

const (
	// maxHeld is how many bytes of large messages all connections may hold together: messages of which not all frames
	// have come, and those that are being stored. Beyond that, one connection is read until its message is stored, and
	// then the next one; the others wait.
	maxHeld = 128 << 20
	// stallLimit is how long the one that is read may take for stallBytes of its message while others wait.
	stallLimit = 10 * time.Second
	stallBytes = 3 << 20
)

var errTooMuchHeld = session.Errorf(session.ResourceLimitExceeded,
	"partially received messages of all clients exceed %d MiB, and this connection sends less than "+
		"%d MiB of its message in %v: send large messages without pauses", maxHeld>>20, stallBytes>>20, stallLimit)

// held counts the bytes of large messages of all connections.
type held struct {
	limit int // maxHeld but in tests

	mu      sync.Mutex // guards all below
	total   int
	of      map[*conn]int // without those that have none
	storing map[*conn]bool
	first   *conn         // the one that is read; nil while there is room
	base    int           // what it had at since
	since   time.Time     // when it was seen to go on
	changed chan struct{} // closed when others may have room; nil while none waits
}

func newHeld() held {
	return held{limit: maxHeld, of: make(map[*conn]int), storing: make(map[*conn]bool)}
}

// change notes what a connection holds now, and whether it waits for the node to store it.
func (h *held) change(c *conn, is int, storing bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.of[c]
	h.total += is - was
	h.of[c], h.storing[c] = is, storing
	if is == 0 {
		delete(h.of, c)
	}
	if !storing {
		delete(h.storing, c)
	}
	if h.first == c && is == 0 || h.total <= h.limit {
		h.first = nil
	}
	if is < was && h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// wait returns nil if a connection may be read now, or else a channel that is closed when it is to be asked again, and
// the connection that is read in the meantime.
func (h *held) wait(c *conn) (again <-chan struct{}, first *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.total <= h.limit || h.of[c] == 0 {
		return nil, nil
	}
	if h.first == nil {
		for other, bytes := range h.of {
			if h.first == nil || bytes > h.of[h.first] {
				h.first = other
			}
		}
		h.base, h.since = h.of[h.first], time.Now()
		if h.changed != nil { // it may be one that waits
			close(h.changed)
			h.changed = nil
		}
	}
	if h.first == c {
		return nil, nil
	}
	if h.changed == nil {
		h.changed = make(chan struct{})
	}
	return h.changed, h.first
}

// stalled reports whether the connection that is read has not gone on for too long.
func (h *held) stalled(first *conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.first != first {
		return false
	}
	now := time.Now()
	if h.storing[first] || h.of[first] >= h.base+stallBytes {
		h.base, h.since = h.of[first], now
		return false
	}
	return now.Sub(h.since) >= stallLimit
}

// count notes how much of large messages the connection holds. mu is held.
func (c *conn) count() {
	is, storing := c.core.Partial(), c.pending > maxPending
	if storing {
		is += c.pending
	}
	if is != c.held {
		c.held = is
		c.server.held.change(c, is, storing)
	}
}

// stored notes that so many bytes no longer wait to be stored. mu is held.
func (c *conn) stored(bytes int) {
	c.pending -= bytes
	if c.held > 0 {
		c.count()
	}
}

// waitForRoom waits while all connections hold too much, and closes the one that the others wait for if it does not go
// on.
func (c *conn) waitForRoom() {
	again, first := c.server.held.wait(c)
	if again == nil {
		return
	}
	c.unread(true)
	defer c.unread(false)
	timer := time.NewTimer(stallLimit)
	defer timer.Stop()
	for again != nil {
		select {
		case <-again:
		case <-c.ctx.Done():
			return
		case <-timer.C:
			if c.server.held.stalled(first) {
				first.shut(errTooMuchHeld)
			}
			timer.Reset(stallLimit)
		}
		again, first = c.server.held.wait(c)
	}
}

// unread notes that the connection is not read for a while: its client is not silent then.
func (c *conn) unread(is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits = is
}
