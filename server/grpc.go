// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/lockstep-mq/lockstep/proto/codec"
	"github.com/lockstep-mq/lockstep/server/api/inprocgrpc"
	"github.com/lockstep-mq/lockstep/server/auth"
)

const (
	// MessageSlackBytes is the maximum size of a gRPC request in addition to the messages of a transaction.
	MessageSlackBytes = 1 << 20
	// streamWindowBytes and connectionWindowBytes are the HTTP/2 flow control windows of clients.
	streamWindowBytes     = 1 << 20
	connectionWindowBytes = 4 << 20
	// A client that does not respond to a ping within keepaliveTimeout is disconnected.
	keepaliveTime    = 5 * time.Second
	keepaliveTimeout = 5 * time.Second
	// writeBufferBytes is the size of the write buffer, which connections share.
	writeBufferBytes = 256 << 10
	// maxStreams is the maximum number of open calls per connection. Further calls wait in the client.
	maxStreams = 4096
	// maxHeaderBytes is the maximum size of the metadata of a call.
	maxHeaderBytes = 64 << 10
	keepaliveMin   = time.Second
	// StopLimit is the maximum time for which Shutdown waits for open calls.
	StopLimit = 500 * time.Millisecond
)

// Server is the gRPC server of a node.
type Server struct {
	Registrar

	grpc *grpc.Server
}

// New creates a gRPC server without services, for transactions of at most the given size. Calls of registered
// services pass through the interceptor.
func New(transactionBytes int, g *auth.Interceptor, options ...grpc.ServerOption) Server {
	s := grpc.NewServer(slices.Concat(codec.MarkingServerOptions(), []grpc.ServerOption{
		grpc.MaxRecvMsgSize(transactionBytes + MessageSlackBytes),
		grpc.InitialWindowSize(streamWindowBytes), grpc.InitialConnWindowSize(connectionWindowBytes),
		grpc.WriteBufferSize(writeBufferBytes),
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMin, PermitWithoutStream: true}),
	}, options)...)
	return Server{Registrar: Registrar{Services: s, Interceptor: g}, grpc: s}
}

// Limits returns the limits for in-process calls.
func Limits(transactionBytes int) inprocgrpc.Limits {
	return inprocgrpc.Limits{RequestBytes: transactionBytes + MessageSlackBytes, MetadataBytes: maxHeaderBytes}
}

// Serve accepts connections until Shutdown is called, and then returns nil. It returns an error if the listener fails,
// or if Shutdown was called before Serve.
func (s Server) Serve(l net.Listener) error {
	return s.grpc.Serve(l) //nolint:wrapcheck // the caller adds the address
}

// Reflect registers the reflection service, which lists the registered services. It must be called before Serve.
func (s Server) Reflect() { reflection.Register(s.Registrar) }

// Shutdown closes the listeners, rejects new calls and waits until open calls have ended. After StopLimit, it cancels
// them.
func (s Server) Shutdown() {
	done := make(chan struct{})
	go func() {
		s.grpc.GracefulStop()
		close(done)
	}()
	timer := time.NewTimer(StopLimit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		s.grpc.Stop()
		<-done
	}
}
