// SPDX-License-Identifier: Apache-2.0

package inprocgrpc

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Caller is a client that calls over a Link.
type Caller struct {
	// Addr is the client's network address.
	Addr net.Addr
	// TLS is the state of the client's connection to the process; nil without TLS.
	TLS *tls.ConnectionState
}

// Limits contains the limits of calls over a Link.
type Limits struct {
	// RequestBytes limits the encoded size of a message to a service.
	RequestBytes int
	// MetadataBytes limits the metadata of a call.
	MetadataBytes int
}

// Link is an in-process connection. It implements grpc.ServiceRegistrar for services, and
// grpc.ClientConnInterface for callers. It is safe for concurrent use after all services are registered.
type Link struct {
	limits   Limits
	services map[string]*service // immutable after the first call
	running  sync.WaitGroup      // handlers in progress

	ctx    context.Context //nolint:containedctx // ends when calls in progress are canceled
	cancel context.CancelFunc

	mu      sync.Mutex // guards the fields below
	callers map[Key]*peer.Peer
	last    Key
	closed  bool
}

// Key identifies a caller that was registered with Enter.
type Key uint64

// New creates a Link without services.
func New(limits Limits) *Link {
	l := &Link{limits: limits, services: make(map[string]*service), callers: make(map[Key]*peer.Peer)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Enter registers a caller and returns its key. Until leave is called, the calls with a context from As(ctx, key)
// belong to this caller. leave does not interrupt calls in progress.
func (l *Link) Enter(c Caller) (key Key, leave func()) {
	p := &peer.Peer{Addr: c.Addr}
	if c.TLS != nil {
		p.AuthInfo = credentials.TLSInfo{State: *c.TLS}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	key = l.last
	l.callers[key] = p
	return key, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.callers, key)
	}
}

type callerKey struct{}

// As returns a context for calls of the caller with the given key.
func As(ctx context.Context, key Key) context.Context {
	return context.WithValue(ctx, callerKey{}, key)
}

// begin registers a handler and returns the peer of its call. If ctx has no caller or the caller has left, the peer has
// a placeholder address.
func (l *Link) begin(ctx context.Context) (*peer.Peer, error) {
	key, _ := ctx.Value(callerKey{}).(Key) // 0 is not a valid key
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, status.Error(codes.Unavailable, "node is stopping")
	}
	l.running.Add(1)
	if p := l.callers[key]; p != nil {
		return p, nil
	}
	return &peer.Peer{Addr: &net.UnixAddr{Name: "in-process", Net: "unix"}}, nil
}

// Close rejects further calls and waits for calls in progress. After timeout, it cancels the remaining calls.
func (l *Link) Close(timeout time.Duration) {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	timer := time.AfterFunc(timeout, l.cancel)
	l.running.Wait()
	timer.Stop()
	l.cancel()
}

type service struct {
	impl    any
	unary   map[string]*grpc.MethodDesc
	streams map[string]*grpc.StreamDesc
	info    grpc.ServiceInfo
}

// RegisterService registers a service. It must not be called after the first call.
func (l *Link) RegisterService(desc *grpc.ServiceDesc, impl any) {
	s := &service{
		impl: impl, unary: make(map[string]*grpc.MethodDesc), streams: make(map[string]*grpc.StreamDesc),
		info: grpc.ServiceInfo{Metadata: desc.Metadata},
	}
	for i := range desc.Methods {
		m := &desc.Methods[i]
		s.unary[m.MethodName] = m
		s.info.Methods = append(s.info.Methods, grpc.MethodInfo{Name: m.MethodName})
	}
	for i := range desc.Streams {
		m := &desc.Streams[i]
		s.streams[m.StreamName] = m
		s.info.Methods = append(s.info.Methods, grpc.MethodInfo{
			Name: m.StreamName, IsClientStream: m.ClientStreams, IsServerStream: m.ServerStreams,
		})
	}
	l.services[desc.ServiceName] = s
}

// GetServiceInfo returns the registered services by name.
func (l *Link) GetServiceInfo() map[string]grpc.ServiceInfo {
	out := make(map[string]grpc.ServiceInfo, len(l.services))
	for name, s := range l.services {
		out[name] = s.info
	}
	return out
}
