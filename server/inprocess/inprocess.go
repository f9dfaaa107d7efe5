// SPDX-License-Identifier: Apache-2.0

package inprocess

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

// Caller is who calls over a Link.
type Caller struct {
	// Addr is where the caller is.
	Addr net.Addr
	// TLS of the caller's own connection to the process; nil if that has none. Its verified chain is the caller's
	// certificate.
	TLS *tls.ConnectionState
}

// Limits of the calls over a Link, as a gRPC server has them.
type Limits struct {
	// RequestBytes is how large a message to a service may be, encoded.
	RequestBytes int
	// MetadataBytes is how large the metadata of a call may be.
	MetadataBytes int
}

// Link is a connection within the process: a grpc.ServiceRegistrar for its services, and a grpc.ClientConnInterface for
// their callers. It is safe for concurrent use once all services are registered.
type Link struct {
	limits   Limits
	services map[string]*service // is not changed once there are calls
	running  sync.WaitGroup      // handlers

	ctx    context.Context //nolint:containedctx // ends when open calls are cut off
	cancel context.CancelFunc

	mu      sync.Mutex // guards all below
	callers map[Key]*peer.Peer
	last    Key
	closed  bool
}

// Key names a caller that has entered.
type Key uint64

// New makes a Link without services.
func New(limits Limits) *Link {
	l := &Link{limits: limits, services: make(map[string]*service), callers: make(map[Key]*peer.Peer)}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Enter makes a caller known. Until leave is called, calls with a context of As are calls of it; calls that are under
// way then go on.
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

// callerKey is the key of the caller in the context of a call.
type callerKey struct{}

// As returns the context for a call of the caller with that key.
func As(ctx context.Context, key Key) context.Context {
	return context.WithValue(ctx, callerKey{}, key)
}

// begin notes that a handler runs, and returns the caller of a call; one whose caller has left comes from nowhere.
func (l *Link) begin(ctx context.Context) (*peer.Peer, error) {
	key, _ := ctx.Value(callerKey{}).(Key) // 0 is nobody's
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, status.Error(codes.Unavailable, "the node stops")
	}
	l.running.Add(1)
	if p := l.callers[key]; p != nil {
		return p, nil
	}
	return &peer.Peer{Addr: &net.UnixAddr{Name: "in-process", Net: "unix"}}, nil
}

// Close lets no further call begin, and waits for those that have. What is not done after patience is cut off.
func (l *Link) Close(patience time.Duration) {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	timer := time.AfterFunc(patience, l.cancel)
	l.running.Wait()
	timer.Stop()
	l.cancel()
}

// service is a registered service.
type service struct {
	impl    any
	unary   map[string]*grpc.MethodDesc
	streams map[string]*grpc.StreamDesc
	info    grpc.ServiceInfo
}

// RegisterService registers a service. It must not be called once there are calls.
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

// GetServiceInfo lists what is registered.
func (l *Link) GetServiceInfo() map[string]grpc.ServiceInfo {
	out := make(map[string]grpc.ServiceInfo, len(l.services))
	for name, s := range l.services {
		out[name] = s.info
	}
	return out
}
