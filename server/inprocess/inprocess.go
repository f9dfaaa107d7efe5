// SPDX-License-Identifier: Apache-2.0

// Package inprocess connects callers in a node's process to the node's own gRPC services, on behalf of somebody who has
// reached the process another way, such as a browser.
//
// Calls over a Link pass the same gate as those from the network: what the caller has shown (a token in the call's
// metadata, a certificate) is checked there, limits of addresses count the address of the somebody, and the audit tells
// it. A Link never gives a call more than the same caller would have over the network.
package inprocess

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strconv"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/test/bufconn"
)

const (
	// callerKey is the metadata that names the caller of a call. Only the server of a Link looks at it.
	callerKey = "lockstep-inprocess-caller"
	// bufferBytes is what one end of the connection may have written before the other one has read it.
	bufferBytes = 256 << 10
)

// Caller is who calls over a Link.
type Caller struct {
	// Addr is where the caller is.
	Addr net.Addr
	// TLS of the caller's own connection to the process; nil if that has none. Its verified chain is the caller's
	// certificate.
	TLS *tls.ConnectionState
}

// Link is a connection within the process. It is safe for concurrent use.
type Link struct {
	listener *bufconn.Listener

	mu      sync.Mutex // guards all below
	callers map[string]*peer.Peer
	last    uint64
}

// New makes a Link. Its listener must be served, or closed.
func New() *Link {
	return &Link{listener: bufconn.Listen(bufferBytes), callers: make(map[string]*peer.Peer)}
}

// Listener is what a gRPC server with ServerOption serves. It must have no transport credentials.
func (l *Link) Listener() net.Listener { return l.listener }

// ServerOption has a server take calls for those of their callers.
func (l *Link) ServerOption() grpc.ServerOption { return grpc.StatsHandler(callers{l}) }

// Dial makes the connection to the services. It must be closed.
func (l *Link) Dial() (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///in-process",
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return l.listener.DialContext(ctx)
		}), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to the own services: %w", err)
	}
	return conn, nil
}

// Enter makes a caller known. Until leave is called, calls with a context of As are calls of it; calls that are under
// way then go on.
func (l *Link) Enter(c Caller) (key string, leave func()) {
	p := &peer.Peer{Addr: c.Addr}
	if c.TLS != nil {
		p.AuthInfo = credentials.TLSInfo{State: *c.TLS}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	key = strconv.FormatUint(l.last, 10)
	l.callers[key] = p
	return key, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.callers, key)
	}
}

// As returns the context for a call of the caller with that key.
func As(ctx context.Context, key string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, callerKey, key)
}

// find returns the caller of a call; one whose caller has left comes from nowhere.
func (l *Link) find(ctx context.Context) *peer.Peer {
	key := metadata.ValueFromIncomingContext(ctx, callerKey)
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(key) == 1 && l.callers[key[0]] != nil {
		return l.callers[key[0]]
	}
	return &peer.Peer{Addr: &net.UnixAddr{Name: "in-process", Net: "unix"}}
}

// callers puts the caller of each call in the place of the connection's end.
type callers struct{ link *Link }

// TagRPC is called before the handler of a call.
func (c callers) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context {
	return peer.NewContext(ctx, c.link.find(ctx))
}

// HandleRPC does nothing.
func (callers) HandleRPC(context.Context, stats.RPCStats) {}

// TagConn does nothing.
func (callers) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (callers) HandleConn(context.Context, stats.ConnStats) {}
