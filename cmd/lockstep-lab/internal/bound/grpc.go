// SPDX-License-Identifier: Apache-2.0

package bound

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
)

const windowBytes = 16 << 20

// message is a byte string in one buffer, or in the buffers in which it was received.
type message struct{ buffers mem.BufferSlice }

func plain(b []byte) message { return message{mem.BufferSlice{mem.SliceBuffer(b)}} }

func (m message) size() int { return m.buffers.Len() }

func (m message) parts() [][]byte {
	out := make([][]byte, len(m.buffers))
	for i, b := range m.buffers {
		out[i] = b.ReadOnlyData()
	}
	return out
}

// asItIs is a codec for byte messages. It neither copies nor parses them.
type asItIs struct{}

func (asItIs) Name() string { return "bound" }

// Marshal returns additional references to the buffers, which gRPC releases.
func (asItIs) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return nil, fmt.Errorf("%T is not a message", v)
	}
	m.buffers.Ref()
	return m.buffers, nil
}

// Unmarshal retains the received buffers.
func (asItIs) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return fmt.Errorf("%T is not a message", v)
	}
	data.Ref()
	m.buffers = data
	return nil
}

const (
	serviceName = "bench.Bound"
	streamName  = "Relay"
)

func relayStream(handler grpc.StreamHandler) grpc.StreamDesc {
	return grpc.StreamDesc{StreamName: streamName, Handler: handler, ServerStreams: true, ClientStreams: true}
}

type grpcListener struct{ net net.Listener }

func listenGRPC() (listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // listening on a local address does not block
	if err != nil {
		return nil, fmt.Errorf("bound: %w", err)
	}
	return &grpcListener{net: l}, nil
}

func (l *grpcListener) address() string { return l.net.Addr().String() }

func (l *grpcListener) serve(handle func(conn)) error {
	s := grpc.NewServer(grpc.ForceServerCodecV2(asItIs{}), grpc.MaxRecvMsgSize(maxMessage),
		grpc.InitialWindowSize(windowBytes), grpc.InitialConnWindowSize(windowBytes))
	desc := relayStream(func(_ any, stream grpc.ServerStream) error {
		c := &grpcConn{stream: stream, end: func() {}}
		defer c.Close()
		handle(c)
		return nil
	})
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: serviceName, HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{desc},
	}, nil)
	if err := s.Serve(l.net); err != nil {
		return fmt.Errorf("bound: %w", err)
	}
	return nil
}

type stream interface {
	SendMsg(m any) error
	RecvMsg(m any) error
}

type grpcConn struct {
	stream stream
	end    func()
	last   message // the last received message
}

func dialGRPC(ctx context.Context, address string) (conn, error) {
	cc, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(asItIs{}), grpc.MaxCallRecvMsgSize(maxMessage)),
		grpc.WithInitialWindowSize(windowBytes), grpc.WithInitialConnWindowSize(windowBytes))
	if err != nil {
		return nil, fmt.Errorf("bound: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	end := func() {
		cancel()
		_ = cc.Close() // the connection is no longer needed
	}
	desc := relayStream(nil)
	s, err := cc.NewStream(ctx, &desc, "/"+serviceName+"/"+streamName)
	if err != nil {
		end()
		return nil, fmt.Errorf("bound: %w", err)
	}
	return &grpcConn{stream: s, end: end}, nil
}

func (c *grpcConn) send(m message) error { return c.stream.SendMsg(&m) }

// flush does nothing, because gRPC sends messages without a flush.
func (c *grpcConn) flush() error { return nil }

func (c *grpcConn) receive() (message, error) {
	c.last.buffers.Free()
	c.last = message{}
	var m message
	if err := c.stream.RecvMsg(&m); err != nil {
		return message{}, err
	}
	c.last = m
	return m, nil
}

// waiting returns false, because gRPC streams do not report received messages.
func (c *grpcConn) waiting() bool { return false }

func (c *grpcConn) Close() error {
	c.end()
	return nil
}
