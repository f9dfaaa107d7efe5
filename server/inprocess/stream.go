// SPDX-License-Identifier: Apache-2.0

package inprocess

import (
	"context"
	"io"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// handlerEnd is a call with streams as its handler has it.
type handlerEnd call

// Context is that of the handler. It ends with the call.
func (h *handlerEnd) Context() context.Context { return h.ctx }

// SetHeader adds to the header.
func (h *handlerEnd) SetHeader(md metadata.MD) error { return (*call)(h).setHeader(md, false) }

// SendHeader adds to the header and lets the caller have it.
func (h *handlerEnd) SendHeader(md metadata.MD) error { return (*call)(h).setHeader(md, true) }

// SetTrailer adds to the trailer.
func (h *handlerEnd) SetTrailer(md metadata.MD) { _ = (*transport)(h).SetTrailer(md) } // it cannot say so

// SendMsg passes a response on, and waits while several have not been received.
func (h *handlerEnd) SendMsg(v any) error {
	if err := h.ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	out, err := pack(v)
	if err != nil {
		return err
	}
	_ = (*call)(h).setHeader(nil, true) // it may be sent already
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

// RecvMsg receives a request; io.EOF when the caller has no further one.
func (h *handlerEnd) RecvMsg(v any) error {
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
	case in := <-h.up: // was sent before
		return in.into(v, h.requestBytes)
	default:
		return io.EOF
	}
}

// callerEnd is a call with streams as its caller has it.
type callerEnd struct {
	call    *call
	outer   context.Context //nolint:containedctx // the caller's
	options options
	single  bool // there is one response
	lone    bool // there is one request
}

// Context is the caller's.
func (e *callerEnd) Context() context.Context { return e.outer }

// Header waits for the header, or for the end of the call.
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

// Trailer is good once RecvMsg has returned an error.
func (e *callerEnd) Trailer() metadata.MD {
	e.call.mu.Lock()
	defer e.call.mu.Unlock()
	return e.call.trailer.Copy()
}

// CloseSend lets the handler know that no further request comes.
func (e *callerEnd) CloseSend() error {
	e.call.closing.Do(func() { close(e.call.half) })
	return nil
}

// SendMsg passes a request on, and waits while several have not been received; io.EOF when the call has ended, and
// RecvMsg tells why. It is no error for a call's only request: generated clients give that to their caller and do not
// ask RecvMsg any more.
func (e *callerEnd) SendMsg(v any) error {
	c := e.call
	if c.ctx.Err() != nil {
		return e.sentTooLate()
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
		return e.sentTooLate()
	}
}

// sentTooLate is what SendMsg returns once the call has ended.
func (e *callerEnd) sentTooLate() error {
	if e.lone {
		return nil
	}
	return io.EOF
}

// RecvMsg receives a response; io.EOF when the call has ended well, or the status that it has ended with.
func (e *callerEnd) RecvMsg(v any) error {
	err := e.receive(v)
	if err != nil {
		e.call.cancel()
		e.call.tell(e.options)
		return err
	}
	if !e.single {
		return nil
	}
	select { // the status decides
	case <-e.call.done:
	case <-e.outer.Done():
		e.call.cancel()
		return status.FromContextError(e.outer.Err()).Err()
	}
	e.call.tell(e.options)
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
		case <-c.done: // it had ended before
		default:
			return status.FromContextError(e.outer.Err()).Err()
		}
	}
	select {
	case in := <-c.down: // was sent before
		return in.into(v, c.responseBytes)
	default:
	}
	if err := c.result(); err != nil {
		return err
	}
	return io.EOF
}
