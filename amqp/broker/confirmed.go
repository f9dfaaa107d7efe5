// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"io"
	"maps"
	"net"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// confirmLimit is the maximum time that a browser waits for acknowledgements of its queue's consumers. readLimit
	// is the part of this time for processing data that has already arrived.
	confirmLimit     = time.Second
	readLimit        = 20 * time.Millisecond
	readPollInterval = time.Millisecond
)

// register adds a consumer, so that browsers of its queue can wait for its acknowledgements. The connection's mu is
// held.
func (s *Server) register(k *consumer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.consumers[k.queue]
	if of == nil {
		of = make(map[*consumer]struct{}, 1)
		s.consumers[k.queue] = of
	}
	of[k] = struct{}{}
}

func (s *Server) unregister(k *consumer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.consumers[k.queue]
	if delete(of, k); len(of) == 0 {
		delete(s.consumers, k.queue)
	}
}

func (s *Server) consumersOf(queue string) []*consumer {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.consumers[queue]))
}

// catchUp waits until the node has applied the acknowledgements that consumers of the queue have sent on any AMQP
// connection, but at most about confirmLimit. Clients acknowledge without waiting for a response; a browser that is
// opened afterwards on another connection must not return acknowledged messages.
func (c *conn) catchUp(queue string) {
	consumers := c.server.consumersOf(queue)
	if len(consumers) == 0 {
		return
	}
	limit := time.NewTimer(confirmLimit)
	defer limit.Stop()
	end := time.Now().Add(readLimit)
	for _, k := range consumers {
		for come := received(k.c.reads.from); k.c.reads.applied.Load() < come && time.Now().Before(end); {
			select {
			case <-time.After(readPollInterval):
			case <-c.ctx.Done():
				return
			}
		}
	}
	waiting := make([]<-chan struct{}, len(consumers))
	for i, k := range consumers {
		waiting[i] = k.sync()
	}
	for i, done := range waiting {
		select {
		case <-done:
		case <-consumers[i].ended:
		case <-limit.C:
			return
		case <-c.ctx.Done():
			return
		}
	}
}

// sync requests a confirmation of all earlier answers. It returns a channel that is closed when the confirmation
// arrives.
func (s *consumer) sync() <-chan struct{} {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	done := make(chan struct{})
	s.confirms++
	s.syncs = append(s.syncs, syncing{number: s.confirms, done: done})
	s.signal()
	return done
}

type syncing struct {
	number uint64
	done   chan struct{}
}

// synced wakes the browsers that wait for a confirmation that has arrived. mu is held.
func (s *consumer) synced() {
	n := 0
	for ; n < len(s.syncs) && s.syncs[n].number <= s.confirmed; n++ {
		close(s.syncs[n].done)
	}
	s.syncs = s.syncs[n:]
}

// reading counts the bytes read from a connection.
type reading struct {
	from    net.Conn // below TLS
	read    int64
	applied atomic.Int64 // bytes processed
}

func (r *reading) Read(b []byte) (int, error) {
	n, err := r.from.Read(b)
	r.read += int64(n)
	return n, err //nolint:wrapcheck // an error of the connection
}

// applying is the input of the frame reader. Each Read means that the previously returned data is processed.
type applying struct {
	from io.Reader // the reading, or a TLS connection on top of it
	*reading
}

// Read implements io.Reader.
func (a *applying) Read(b []byte) (int, error) {
	a.applied.Store(a.read)
	return a.from.Read(b) //nolint:wrapcheck // an error of the connection
}

type belowTLS struct {
	net.Conn

	reads *reading
}

// Read implements io.Reader.
func (b *belowTLS) Read(p []byte) (int, error) { return b.reads.Read(p) }
