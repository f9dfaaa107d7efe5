// SPDX-License-Identifier: Apache-2.0

package peerclient

import (
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// MaxRemoteResponseBytes is the maximum size of a response on a connection of Remotes: a transaction of the maximum
	// size, and 1 MiB.
	MaxRemoteResponseBytes = txn.MaxTransactionBytes + 1<<20

	remotePing    = 10 * time.Second
	remoteTimeout = 5 * time.Second
	remoteWindow  = 8 << 20
)

// Remotes manages connections to nodes of other pairs, which may be at other sites. They are opened on demand. Its
// methods may be called concurrently.
type Remotes struct {
	options []grpc.DialOption

	mu     sync.Mutex // guards the fields below
	conns  map[string]*grpc.ClientConn
	closed bool
}

// NewRemotes creates a Remotes. The options apply to each connection. Unless they contain transport credentials,
// connections are not encrypted. The caller must call Close.
func NewRemotes(options ...grpc.DialOption) *Remotes {
	return &Remotes{options: options, conns: make(map[string]*grpc.ClientConn)}
}

// Close closes the connections and cancels all calls. Later calls of Conn return store.ErrClosed.
func (r *Remotes) Close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	for _, c := range r.conns {
		_ = c.Close() // fails only if the connection is already closed
	}
	clear(r.conns)
}

// Conn returns the connection to the node at an address. It replaces a failed connection. An immediate call of Conn
// after a failed request can still return the failed connection. Errors: store.ErrClosed, and those of grpc.NewClient.
func (r *Remotes) Conn(address string) (*grpc.ClientConn, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, store.ErrClosed
	}
	c := r.conns[address]
	if c != nil && c.GetState() != connectivity.TransientFailure {
		return c, nil
	}
	if c != nil {
		_ = c.Close()
		delete(r.conns, address)
	}
	c, err := grpc.NewClient("passthrough:///"+address, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: remotePing, Timeout: remoteTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxRemoteResponseBytes)),
		grpc.WithInitialWindowSize(remoteWindow), grpc.WithInitialConnWindowSize(remoteWindow),
	}, r.options...)...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	r.conns[address] = c
	return c, nil
}

// Forget closes the connections for which unused returns true. failed reports whether the connection has failed.
// unused must not call methods of r.
func (r *Remotes) Forget(unused func(address string, failed bool) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for address, c := range r.conns {
		if unused(address, c.GetState() == connectivity.TransientFailure) {
			_ = c.Close()
			delete(r.conns, address)
		}
	}
}
