// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/amqp/session"
)

const (
	// maxHeld is the maximum total size, over all connections, of large messages that are incomplete or being stored.
	// Above this limit, only one of the connections with large messages is read until its message is stored; then the
	// next one is read.
	maxHeld = 128 << 20
	// stallLimit is the time in which the connection that is read must send stallBytes while other connections wait.
	stallLimit = 10 * time.Second
	stallBytes = 3 << 20
)

var errHeldLimit = session.Errorf(session.ResourceLimitExceeded,
	"partially received messages of all clients exceed %d MiB, and this connection sends less than "+
		"%d MiB of its message in %v: send large messages without pauses", maxHeld>>20, stallBytes>>20, stallLimit)

type held struct {
	limit int // maxHeld except in tests

	mu      sync.Mutex // guards the fields below
	total   int
	of      map[*conn]int // connections with a size above 0
	storing map[*conn]bool
	first   *conn         // the connection that is read above the limit; nil if none was selected
	base    int           // size of its messages at the time since
	since   time.Time     // time of the last progress of first
	changed chan struct{} // closed when other connections may be read; nil without a waiter
}

func newHeld() held {
	return held{limit: maxHeld, of: make(map[*conn]int), storing: make(map[*conn]bool)}
}

// change records the size of the large messages of a connection, and whether the node is storing them.
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

// wait returns nil if the connection may be read. Otherwise it returns a channel that is closed when the caller should
// check again, and the connection that is currently read.
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
		if h.changed != nil { // first may be waiting
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

// stalled reports whether the connection that is read makes too little progress.
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

// count updates the recorded size of the large messages of the connection. mu is held.
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

// stored subtracts messages that no longer wait to be stored. mu is held.
func (c *conn) stored(bytes int) {
	c.pending -= bytes
	if c.held > 0 {
		c.count()
	}
}

// waitForRoom waits while the total of all connections exceeds the limit and another connection is read, and closes
// that connection if it stalls.
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
				first.shut(errHeldLimit)
			}
			timer.Reset(stallLimit)
		}
		again, first = c.server.held.wait(c)
	}
}

func (c *conn) unread(is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waits = is
}
