// SPDX-License-Identifier: Apache-2.0

package inprocgrpc

import (
	"context"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

type handlerEnd struct{ *call }

func (h handlerEnd) Context() context.Context { return h.ctx }

func (h handlerEnd) SetTrailer(md metadata.MD) { _ = transport(h).SetTrailer(md) } // has no error result

func (h handlerEnd) SendMsg(v any) error {
	if err := h.ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	out, err := pack(v)
	if err != nil {
		return err
	}
	_ = h.setHeader(nil, true) // the header may already be sent
	select {
	case h.down <- out:
		return nil
	default:
	}
	select {
	case h.down <- out:
		return nil
	case <-h.ctx.Done():
		return status.FromContextError(h.ctx.Err()).Err()
	}
}

// RecvMsg receives the next message of the caller into v. It returns io.EOF after the caller has called
// CloseSend.
func (h handlerEnd) RecvMsg(v any) error {
	select {
	case in := <-h.up:
		return in.into(v, h.requestBytes)
	default:
	}
	select {
	case in := <-h.up:
		return in.into(v, h.requestBytes)
	case <-h.half:
	case <-h.ctx.Done():
		return status.FromContextError(h.ctx.Err()).Err()
	}
	select {
	case in := <-h.up: // sent before the end
		return in.into(v, h.requestBytes)
	default:
		return io.EOF
	}
}

type callerEnd struct {
	call    *call
	outer   context.Context //nolint:containedctx // context of the caller
	options options
	single  bool // the call has exactly one response
	unaryIn bool // the call has exactly one request
}

func (e *callerEnd) Context() context.Context { return e.outer }

// Header waits for the header or the end of the call, and returns the header.
func (e *callerEnd) Header() (metadata.MD, error) {
	select {
	case <-e.call.began:
	case <-e.outer.Done():
		return nil, status.FromContextError(e.outer.Err()).Err()
	}
	e.call.mu.Lock()
	defer e.call.mu.Unlock()
	return e.call.header.Copy(), nil
}

// Trailer returns the trailer of the call. It is valid after RecvMsg has returned an error.
func (e *callerEnd) Trailer() metadata.MD {
	e.call.mu.Lock()
	defer e.call.mu.Unlock()
	return e.call.trailer.Copy()
}

func (e *callerEnd) CloseSend() error {
	e.call.closing.Do(func() { close(e.call.half) })
	return nil
}

// SendMsg sends a message to the handler. It returns io.EOF if the call has ended; in that case, RecvMsg returns the
// status. For a call with a single request, it returns nil instead of io.EOF.
func (e *callerEnd) SendMsg(v any) error {
	c := e.call
	if c.ctx.Err() != nil {
		return e.sentAfterEnd()
	}
	select {
	case <-c.half:
		return status.Error(codes.Internal, "SendMsg called after CloseSend")
	default:
	}
	out, err := pack(v)
	if err != nil {
		c.cancel()
		return err
	}
	select {
	case c.up <- out:
		return nil
	default:
	}
	select {
	case c.up <- out:
		return nil
	case <-c.ctx.Done():
		return e.sentAfterEnd()
	}
}

func (e *callerEnd) sentAfterEnd() error {
	if e.unaryIn {
		return nil
	}
	return io.EOF
}

func (e *callerEnd) RecvMsg(v any) error {
	err := e.receive(v)
	if err != nil {
		e.call.cancel()
		e.call.notify(e.options)
		return err
	}
	if !e.single {
		return nil
	}
	select { // wait for the end of the call and return its status
	case <-e.call.done:
	case <-e.outer.Done():
		e.call.cancel()
		return status.FromContextError(e.outer.Err()).Err()
	}
	e.call.notify(e.options)
	return e.call.result()
}

func (e *callerEnd) receive(v any) error {
	c := e.call
	select {
	case in := <-c.down:
		return in.into(v, c.responseBytes)
	default:
	}
	select {
	case in := <-c.down:
		return in.into(v, c.responseBytes)
	case <-c.done:
	case <-e.outer.Done():
		select {
		case <-c.done: // the call has already ended
		default:
			return status.FromContextError(e.outer.Err()).Err()
		}
	}
	select {
	case in := <-c.down: // sent before the end
		return in.into(v, c.responseBytes)
	default:
	}
	if err := c.result(); err != nil {
		return err
	}
	return io.EOF
}
