// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"errors"
	"sync"

	"google.golang.org/grpc"
)

const (
	// clientsEach is how many AMQP connections share one connection to the services, which takes 4,096 streams.
	clientsEach = 8
	// maxLinks is how many links an AMQP connection has at most: each may be a stream.
	maxLinks = 480
)

// pool has the connections to the node's own services. The zero value with dial is ready.
type pool struct {
	dial func() (*grpc.ClientConn, error)

	mu     sync.Mutex // guards all below
	shared []*shared
	closed bool
}

// shared is a connection to the services that several clients use.
type shared struct {
	conn *grpc.ClientConn
	used int
}

var errPoolClosed = errors.New("the node stops")

// take returns a connection to the services; give must be called when its client has gone.
func (p *pool) take() (services *grpc.ClientConn, give func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, nil, errPoolClosed
	}
	var one *shared
	for _, s := range p.shared {
		if s.used < clientsEach && (one == nil || s.used < one.used) {
			one = s
		}
	}
	if one == nil {
		conn, err := p.dial()
		if err != nil {
			return nil, nil, err
		}
		one = &shared{conn: conn}
		p.shared = append(p.shared, one)
	}
	one.used++
	return one.conn, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		one.used--
		p.trim()
	}, nil
}

// trim closes connections that nothing uses, but for one. mu is held.
func (p *pool) trim() {
	kept := p.shared[:0]
	spare := false
	for _, s := range p.shared {
		if s.used == 0 && spare {
			_ = s.conn.Close() // nothing uses it
			continue
		}
		spare = spare || s.used < clientsEach
		kept = append(kept, s)
	}
	clear(p.shared[len(kept):])
	p.shared = kept
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, s := range p.shared {
		_ = s.conn.Close() // what is under way is over
	}
	p.shared = nil
}
