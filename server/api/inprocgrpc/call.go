// SPDX-License-Identifier: Apache-2.0

package inprocgrpc

import (
	"context"
	"errors"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

const (
	// depth is the number of messages buffered in each direction.
	depth                = 4
	defaultResponseBytes = 4 << 20 // the default of gRPC clients
	// pairBytes is the overhead that is counted for each metadata entry, as in HTTP/2.
	pairBytes = 32
)

type options struct {
	responseBytes   int
	header, trailer *metadata.MD
}

func optionsOf(list []grpc.CallOption) (options, error) {
	o := options{responseBytes: defaultResponseBytes}
	for _, one := range list {
		switch one := one.(type) {
		case grpc.MaxRecvMsgSizeCallOption:
			o.responseBytes = one.MaxRecvMsgSize
		case grpc.HeaderCallOption:
			o.header = one.HeaderAddr
		case grpc.TrailerCallOption:
			o.trailer = one.TrailerAddr
		case grpc.StaticMethodCallOption, grpc.FailFastCallOption, grpc.EmptyCallOption: // no effect here
		default:
			return o, status.Errorf(codes.Internal, "option %T is not supported for in-process calls", one)
		}
	}
	return o, nil
}

// call is the state that both ends of a call share.
type call struct {
	method string
	ctx    context.Context //nolint:containedctx // context of the handler
	cancel context.CancelFunc
	// Maximum sizes of messages to the handler and to the caller.
	requestBytes, responseBytes int

	up, down chan item     // messages to the handler and to the caller
	half     chan struct{} // closed when the caller has finished sending
	closing  sync.Once     // guards the close of half
	began    chan struct{} // closed when header is final
	done     chan struct{} // closed when the handler has returned

	mu              sync.Mutex // guards the fields below
	header, trailer metadata.MD
	headerSent      bool
	ended           bool
	status          *status.Status // set when the call has ended
}

// newCall creates a call without blocking. After the handler has returned, the caller must call finish and then
// Link.running.Done.
func (l *Link) newCall(ctx context.Context, method string, o options) (*call, error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	if n := metadataBytes(md); n > l.limits.MetadataBytes {
		return nil, status.Errorf(codes.Internal, "metadata has %d bytes, maximum is %d", n, l.limits.MetadataBytes)
	}
	from, err := l.begin(ctx)
	if err != nil {
		return nil, err
	}
	c := &call{
		method: method, requestBytes: l.limits.RequestBytes, responseBytes: o.responseBytes,
		up: make(chan item, depth), down: make(chan item, depth), half: make(chan struct{}),
		began: make(chan struct{}), done: make(chan struct{}),
	}
	inner, cancel := context.WithCancel(separate{ctx})
	stop := context.AfterFunc(l.ctx, cancel) //nolint:contextcheck // the end of the link ends the call
	c.cancel = func() {
		stop()
		cancel()
	}
	inner = peer.NewContext(metadata.NewIncomingContext(inner, md), from)
	c.ctx = grpc.NewContextWithServerTransportStream(inner, transport{c})
	return c, nil
}

func metadataBytes(md metadata.MD) (n int) {
	for k, values := range md {
		for _, v := range values {
			n += len(k) + len(v) + pairBytes
		}
	}
	return n
}

// separate wraps the caller's context without its values.
type separate struct{ context.Context } //nolint:containedctx // it wraps one

func (separate) Value(any) any { return nil }

// AfterFunc implements the method that package context calls for derived contexts.
func (a separate) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(a.Context, f) }

func (c *call) finish(err error) {
	s, ok := status.FromError(err)
	if !ok {
		s = status.FromContextError(err)
	}
	c.mu.Lock()
	c.ended, c.status = true, s
	sent := c.headerSent
	c.headerSent = true
	c.mu.Unlock()
	if !sent {
		close(c.began)
	}
	close(c.done)
	c.cancel()
}

func (c *call) result() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status.Err()
}

func (c *call) notify(o options) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.header != nil {
		*o.header = c.header.Copy()
	}
	if o.trailer != nil {
		*o.trailer = c.trailer.Copy()
	}
}

// transport implements grpc.ServerTransportStream. It is used by grpc.Method, grpc.SetHeader and similar
// functions.
type transport struct{ *call }

func (t transport) Method() string { return t.method }

func (t transport) SetTrailer(md metadata.MD) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return errHeaderSent
	}
	t.trailer = metadata.Join(t.trailer, md)
	return nil
}

var errHeaderSent = errors.New("already sent")

func (c *call) SetHeader(md metadata.MD) error { return c.setHeader(md, false) }

func (c *call) SendHeader(md metadata.MD) error { return c.setHeader(md, true) }

func (c *call) setHeader(md metadata.MD, send bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.headerSent {
		return errHeaderSent
	}
	c.header = metadata.Join(c.header, md)
	if send {
		c.headerSent = true
		close(c.began)
	}
	return nil
}

func (l *Link) find(full string) (s *service, method string, err error) {
	name, method, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	if s = l.services[name]; s == nil {
		return nil, "", status.Errorf(codes.Unimplemented, "unknown service %v", name)
	}
	return s, method, nil
}

// unknown returns the error for an unknown method. It is also the error for a unary method that is called as a
// stream, and vice versa.
func unknown(full string) error {
	service, method, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	return status.Errorf(codes.Unimplemented, "unknown method %v for service %v", method, service)
}

// Invoke makes a unary call.
func (l *Link) Invoke(ctx context.Context, method string, req, resp any, opts ...grpc.CallOption) error {
	o, err := optionsOf(opts)
	if err != nil {
		return err
	}
	s, name, err := l.find(method)
	if err != nil {
		return err
	}
	m := s.unary[name]
	if m == nil {
		return unknown(method)
	}
	request, err := encoded(req)
	if err != nil {
		return err
	}
	c, err := l.newCall(ctx, method, o)
	if err != nil {
		return err
	}
	go func() {
		defer l.running.Done()
		out, err := m.Handler(s.impl, c.ctx, func(v any) error { return request.into(v, c.requestBytes) }, nil)
		if err == nil {
			var answer item
			if answer, err = encoded(out); err == nil {
				c.down <- answer
			}
		}
		c.finish(err)
	}()
	select {
	case <-c.done:
	case <-ctx.Done():
		c.cancel()
		return status.FromContextError(ctx.Err()).Err()
	}
	c.notify(o)
	if err := c.result(); err != nil {
		return err
	}
	answer := <-c.down
	return answer.into(resp, c.responseBytes)
}

// NewStream starts a streaming call.
func (l *Link) NewStream(
	ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	o, err := optionsOf(opts)
	if err != nil {
		return nil, err
	}
	s, name, err := l.find(method)
	if err != nil {
		return nil, err
	}
	m := s.streams[name]
	if m == nil {
		return nil, unknown(method)
	}
	c, err := l.newCall(ctx, method, o)
	if err != nil {
		return nil, err
	}
	go func() {
		defer l.running.Done()
		c.finish(m.Handler(s.impl, handlerEnd{c}))
	}()
	return &callerEnd{call: c, outer: ctx, options: o, single: !desc.ServerStreams, unaryIn: !desc.ClientStreams}, nil
}
