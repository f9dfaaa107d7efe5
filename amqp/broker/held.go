// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"sync"

	"github.com/lockstep-mq/lockstep/amqp/session"
)

// maxHeld is how many bytes of messages of which not all frames have come all connections may have together. Each may
// have some by itself (session.Options.MaxPartial), but a thousand connections would have a thousand times as much.
const maxHeld = 128 << 20

var errTooMuchHeld = session.Errorf(session.ResourceLimitExceeded,
	"the messages that clients have sent in part have more than %d MiB together, and this connection has the most of "+
		"them: end messages that were begun before beginning others", maxHeld>>20)

// held counts the bytes of messages in part of all connections.
type held struct {
	mu    sync.Mutex // guards all below
	total int
	of    map[*conn]int // without those that have none
}

// change notes what a connection has now. If that is too much of all together, it returns the connection that has most.
func (h *held) change(c *conn, was, is int) (most *conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.total += is - was
	if h.of == nil {
		h.of = make(map[*conn]int)
	}
	if h.of[c] = is; is == 0 {
		delete(h.of, c)
	}
	if is <= was || h.total <= maxHeld {
		return nil
	}
	for other, bytes := range h.of {
		if most == nil || bytes > h.of[most] {
			most = other
		}
	}
	return most
}

// count notes how much of messages in part the connection has, and returns the one that is to be closed if all have too
// much. mu is held.
func (c *conn) count() (most *conn) {
	is := c.core.Partial()
	if is == c.held {
		return nil
	}
	was := c.held
	c.held = is
	return c.server.held.change(c, was, is)
}
