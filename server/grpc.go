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
	"github.com/lockstep-mq/lockstep/server/gate"
	"github.com/lockstep-mq/lockstep/server/inprocess"
)

const (
	// MessageSlackBytes is what a gRPC request has around the messages of a transaction.
	MessageSlackBytes = 1 << 20
	// streamWindowBytes and connectionWindowBytes are what a client may send before the node has read it.
	streamWindowBytes     = 1 << 20
	connectionWindowBytes = 4 << 20
	// A client that answers no ping for so long is gone, and its messages go to others.
	keepaliveTime    = 5 * time.Second
	keepaliveTimeout = 5 * time.Second
	// writeBufferBytes is how much is collected before it is written to a connection: a batch of messages of 15 KB takes
	// a few system calls then. gRPC has connections share the buffers, so that an idle one has none.
	writeBufferBytes = 256 << 10
	// maxStreams is how many calls of one connection may be open; more wait in their client. Each costs memory: for its
	// goroutines, and for what it may send ahead.
	maxStreams = 4096
	// maxHeaderBytes is how large the metadata of a call may be. A token is the largest part of it.
	maxHeaderBytes = 64 << 10
	// keepaliveMin is how often clients may ping.
	keepaliveMin = time.Second
	// StopLimit is how long open calls may take to end when the server stops.
	StopLimit = 500 * time.Millisecond
)

// Server is the gRPC server of a node.
type Server struct {
	Registrar

	grpc *grpc.Server
}

// New makes the gRPC server of a node, without services, for transactions of that size. The options are added to its
// own. Every call passes the gate.
func New(transactionBytes int, g *gate.Gate, options ...grpc.ServerOption) Server {
	s := grpc.NewServer(slices.Concat(codec.MarkingServerOptions(), []grpc.ServerOption{
		grpc.MaxRecvMsgSize(transactionBytes + MessageSlackBytes),
		grpc.InitialWindowSize(streamWindowBytes), grpc.InitialConnWindowSize(connectionWindowBytes),
		grpc.WriteBufferSize(writeBufferBytes),
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: keepaliveTime, Timeout: keepaliveTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: keepaliveMin, PermitWithoutStream: true}),
	}, options)...)
	return Server{Registrar: Registrar{Services: s, Gate: g}, grpc: s}
}

// Limits are those of the server, for calls within the process.
func Limits(transactionBytes int) inprocess.Limits {
	return inprocess.Limits{RequestBytes: transactionBytes + MessageSlackBytes, MetadataBytes: maxHeaderBytes}
}

// Serve serves until Shutdown is called, or the listener fails.
func (s Server) Serve(l net.Listener) error {
	return s.grpc.Serve(l) //nolint:wrapcheck // its caller knows what was served
}

// Reflect registers the service by which tools find out which services there are. It is the last to be registered.
func (s Server) Reflect() { reflection.Register(s.Registrar) }

// Shutdown ends all calls: those that take longer than a moment are cut off.
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
