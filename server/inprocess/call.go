// SPDX-License-Identifier: Apache-2.0

package inprocess

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
	// depth is how many messages of a call may wait in each direction until their sender waits.
	depth = 4
	// defaultResponseBytes is the largest response to a caller that does not say otherwise, as in gRPC.
	defaultResponseBytes = 4 << 20
	// pairBytes is what a key and a value of metadata count beside their own length, as in HTTP/2.
	pairBytes = 32
)

// options of a call, as far as a Link knows them.
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
		case grpc.StaticMethodCallOption, grpc.FailFastCallOption, grpc.EmptyCallOption: // mean nothing here
		default:
			return o, status.Errorf(codes.Internal, "a call in the process cannot have the option %T", one)
		}
	}
	return o, nil
}

// call is one call. Its fields are those of the handler's end; a callerEnd has the rest.
type call struct {
	method string
	ctx    context.Context //nolint:containedctx // that of the handler
	cancel context.CancelFunc
	// limits of messages to the handler and to the caller.
	requestBytes, responseBytes int

	up, down chan item     // to the handler, and to the caller
	half     chan struct{} // closed when the caller sends nothing more
	closing  sync.Once     // closes half
	began    chan struct{} // closed when header is not changed any more
	done     chan struct{} // closed when the handler has ended

	mu              sync.Mutex // guards all below
	header, trailer metadata.MD
	headerSent      bool
	ended           bool
	status          *status.Status // once it has ended
}

// newCall prepares a call: the caller has not waited for anything yet. finish must be called.
func (l *Link) newCall(ctx context.Context, method string, o options) (*call, error) {
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	md, _ := metadata.FromOutgoingContext(ctx)
	if n := metadataBytes(md); n > l.limits.MetadataBytes {
		return nil, status.Errorf(codes.Internal, "the metadata of the call has %d bytes; %d are possible", n,
			l.limits.MetadataBytes)
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
	inner, cancel := context.WithCancel(apart{ctx})
	stop := context.AfterFunc(l.ctx, cancel) //nolint:contextcheck // the link ends as well
	c.cancel = func() {
		stop()
		cancel()
	}
	inner = peer.NewContext(metadata.NewIncomingContext(inner, md), from)
	c.ctx = grpc.NewContextWithServerTransportStream(inner, (*transport)(c))
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

// apart is the caller's context for its end and its deadline: its values are not for the handler.
type apart struct{ context.Context } //nolint:containedctx // it is one

// Value is none.
func (apart) Value(any) any { return nil }

// AfterFunc spares the context package a goroutine.
func (a apart) AfterFunc(f func()) (stop func() bool) { return context.AfterFunc(a.Context, f) }

// finish ends a call with what its handler has returned.
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

// result is what the call has ended with.
func (c *call) result() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status.Err()
}

// tell gives the caller the header and the trailer that it has asked for.
func (c *call) tell(o options) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.header != nil {
		*o.header = c.header.Copy()
	}
	if o.trailer != nil {
		*o.trailer = c.trailer.Copy()
	}
}

// transport is a call as grpc.Method, grpc.SetHeader and others of their kind find it.
type transport call

// Method is the call's full name.
func (t *transport) Method() string { return t.method }

// SetHeader adds to the header.
func (t *transport) SetHeader(md metadata.MD) error { return (*call)(t).setHeader(md, false) }

// SendHeader adds to the header and lets the caller have it.
func (t *transport) SendHeader(md metadata.MD) error { return (*call)(t).setHeader(md, true) }

// SetTrailer adds to the trailer.
func (t *transport) SetTrailer(md metadata.MD) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		return errHeaderSent
	}
	t.trailer = metadata.Join(t.trailer, md)
	return nil
}

var errHeaderSent = errors.New("it was sent already")

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

// find finds the service of a method, and the method's own name.
func (l *Link) find(full string) (s *service, method string, err error) {
	name, method, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	if s = l.services[name]; s == nil {
		return nil, "", status.Errorf(codes.Unimplemented, "unknown service %v", name)
	}
	return s, method, nil
}

// unknown is the answer to a call of a method that its service does not have, or not of that kind.
func unknown(full string) error {
	service, method, _ := strings.Cut(strings.TrimPrefix(full, "/"), "/")
	return status.Errorf(codes.Unimplemented, "unknown method %v for service %v", method, service)
}

// Invoke makes a call with one request and one response.
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
	c.tell(o)
	if err := c.result(); err != nil {
		return err
	}
	answer := <-c.down
	return answer.into(resp, c.responseBytes)
}

// NewStream begins a call with a stream of requests, of responses, or of both.
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
		c.finish(m.Handler(s.impl, (*handlerEnd)(c)))
	}()
	return &callerEnd{call: c, outer: ctx, options: o, single: !desc.ServerStreams, lone: !desc.ClientStreams}, nil
}
