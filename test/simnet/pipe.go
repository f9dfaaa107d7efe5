// SPDX-License-Identifier: Apache-2.0

package simnet

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipe is one direction of a connection.
type pipe struct {
	n    *Network
	way  Way
	wake chan struct{} // has capacity 1; receives a value when a field below changes

	mu       sync.Mutex // guards the fields below
	chunks   []chunk
	last     time.Time // arrival of the newest chunk
	finished error     // set when the sender has closed; the reader receives it after all chunks
	finishAt time.Time
	gone     error // set when the reader has closed; every read returns it
	deadline time.Time
}

// chunk is the data of one write.
type chunk struct {
	data []byte
	at   time.Time // time of arrival, unless the link is cut then
}

func newPipe(n *Network, w Way) *pipe { return &pipe{n: n, way: w, wake: make(chan struct{}, 1)} }

func (p *pipe) signal() {
	select {
	case p.wake <- struct{}{}:
	default: // the reader is already notified
	}
}

// arrivalLocked returns the time at which bytes sent now arrive. Data never arrives before data sent earlier.
func (p *pipe) arrivalLocked(bytes int) time.Time {
	at := time.Now().Add(p.n.latency(p.way))
	if at.Before(p.last) {
		at = p.last
	}
	p.last = at.Add(p.n.transmission(p.way, bytes))
	return p.last
}

func (p *pipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case errors.Is(p.finished, io.EOF):
		return 0, net.ErrClosed
	case p.finished != nil:
		return 0, p.finished
	case p.gone != nil:
		return len(b), nil // the other end has closed; this end detects that when the EOF arrives
	}
	p.chunks = append(p.chunks, chunk{append([]byte(nil), b...), p.arrivalLocked(len(b))})
	p.signal()
	return len(b), nil
}

// finish closes the sending side. The reader receives reason after all data.
func (p *pipe) finish(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.finished == nil {
		p.finished, p.finishAt = reason, p.arrivalLocked(0)
	}
	p.signal()
}

// abandon closes the reading side. Reads then return reason.
func (p *pipe) abandon(reason error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone == nil {
		p.gone = reason
	}
	p.chunks = nil
	p.signal()
}

func (p *pipe) setDeadline(t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deadline = t
	p.signal()
}

// take copies received data into b, if the link is open. Otherwise, it returns how long to wait for data; 0 means
// until the next signal.
func (p *pipe) take(b []byte, open bool) (n int, wait time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	until := func(t time.Time) {
		if d := t.Sub(now); wait == 0 || d < wait {
			wait = max(d, 1)
		}
	}
	if p.gone != nil {
		return 0, 0, p.gone
	}
	if !p.deadline.IsZero() {
		if !now.Before(p.deadline) {
			return 0, 0, os.ErrDeadlineExceeded
		}
		until(p.deadline)
	}
	switch {
	case !open:
	case len(p.chunks) > 0 && !p.chunks[0].at.After(now):
		n = copy(b, p.chunks[0].data)
		if p.chunks[0].data = p.chunks[0].data[n:]; len(p.chunks[0].data) == 0 {
			p.chunks = p.chunks[1:]
		}
	case len(p.chunks) > 0:
		until(p.chunks[0].at)
	case p.finished != nil && !p.finishAt.After(now):
		err = p.finished
	case p.finished != nil:
		until(p.finishAt)
	}
	return n, wait, err
}

func (p *pipe) read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	for {
		open, changed := p.n.passes(p.way)
		n, wait, err := p.take(b, open)
		if n > 0 || err != nil {
			return n, err
		}
		var after <-chan time.Time
		var timer *time.Timer
		if wait > 0 {
			timer = time.NewTimer(wait)
			after = timer.C
		}
		select {
		case <-p.wake:
		case <-changed:
		case <-after:
		}
		if timer != nil {
			timer.Stop()
		}
	}
}
